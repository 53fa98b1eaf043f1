"""The quire-gateway command: wiring only."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from functools import partial

from quire.admin.v1.admin_service_pb2_grpc import add_AdminServicer_to_server
from quire.inference.v1.inference_service_pb2_grpc import add_InferenceServicer_to_server
from quire.management.v1.management_service_pb2_grpc import add_ManagementServicer_to_server
from quire.scheduler.v1 import serve_pb2
from quire_gateway.admission import Admission
from quire_gateway.anthropic.endpoints import AnthropicEndpoints
from quire_gateway.batches.runner import BatchRunner
from quire_gateway.byte_detokenizer import ByteDetokenizer
from quire_gateway.chat.runner import ChatRunner
from quire_gateway.detokenizer import RemoteDetokenizer
from quire_gateway.detokenizing import Detokenizer, joins_bytes
from quire_gateway.engine_operations import EngineOperations
from quire_gateway.generation import Generator
from quire_gateway.metrics import GatewayMetrics
from quire_gateway.models import ModelTask, ServedModel
from quire_gateway.openai.batch_endpoints import BatchEndpoints
from quire_gateway.openai.endpoints import OpenAIEndpoints
from quire_gateway.openai.pooling_endpoints import PoolingEndpoints
from quire_gateway.openai.response_endpoints import ResponseEndpoints
from quire_gateway.openai.response_store import ResponseStore
from quire_gateway.openai.token_endpoints import TokenEndpoints
from quire_gateway.pacing import Pacer
from quire_gateway.pooling.runner import PoolingRunner
from quire_gateway.readiness import Readiness
from quire_gateway.scheduler_connection import SchedulerConnection
from quire_gateway.scheduler_pool import SchedulerPool
from quire_gateway.servicers import (
    admin,
    anthropic,
    batches,
    inference,
    management,
    openai,
    pooling,
    responses,
    tokens,
)
from quire_gateway.settings import GatewaySettings
from quire_gateway.tokenizer_client import TokenizerClient, TokenizerInfo
from quire_gateway.vocabularies import SHARED, Vocabularies, parse_engine_tokenizers
from quire_servicekit.channel import connect
from quire_servicekit.metrics import Metrics
from quire_servicekit.server import ServiceServer, add
from quire_servicekit.service import run_service


class Gateway:
    """All parts of one gateway process, wired. Make it inside a running event loop; then start, and close."""

    def __init__(self, settings: GatewaySettings, metrics: Metrics) -> None:
        self.settings = settings
        self._has_served = False
        self._registry = metrics.registry
        self.metrics = GatewayMetrics(metrics.registry)
        self.admission = Admission(
            max_in_flight=settings.max_in_flight, max_in_flight_per_tenant=settings.max_in_flight_per_tenant
        )
        self.server = ServiceServer(
            settings,
            names=[
                openai.SERVICE_NAME,
                responses.SERVICE_NAME,
                batches.FILES_NAME,
                batches.BATCHES_NAME,
                anthropic.SERVICE_NAME,
                inference.SERVICE_NAME,
                management.SERVICE_NAME,
                admin.SERVICE_NAME,
            ],
        )
        self._channels = {
            address: connect(
                address, max_message_bytes=settings.max_message_bytes, otlp_endpoint=settings.otlp_endpoint
            )
            for address in dict.fromkeys(
                (*settings.tokenizers, *settings.schedulers, *_own_tokenizers(settings))
            )
        }
        self.vocabularies = Vocabularies(
            settings.tokenizers, settings.schedulers, settings.engine_tokenizers, self._tokenizer_client
        )
        self.tokenizer = self.vocabularies.shared
        self._is_chosen = False
        self.pool = SchedulerPool(
            RemoteDetokenizer(self.tokenizer, resume_timeout_s=settings.resume_timeout_s),
            resume_timeout_s=settings.resume_timeout_s,
            refusal_of=self._refusal_of,
            on_change=self._on_change,
            on_resume=self.metrics.resumed_requests.inc,
        )
        pacer = Pacer(duty=settings.coalesce_duty, max_wait_s=settings.coalesce_max_wait_ms / 1000)
        self.generator = Generator(
            self.tokenizer, self.pool, self.admission, pacer, self.metrics, settings.rules()
        )
        self.chat_runner = ChatRunner(self.generator, settings.formats())
        self.pooling_runner = PoolingRunner(
            self.vocabularies.client_of, self.pool, self.admission, pacer, self.metrics
        )
        self.readiness = Readiness(
            self._has_dependencies,
            lambda: self.admission.is_draining,
            self._publish,
            unready_after_s=settings.unready_after_s,
        )
        self._add_servicers()

    @property
    def detokenizer(self) -> Detokenizer:
        """Who makes text of tokens; settled before the first engine is connected."""
        return self.pool.detokenizer

    async def start(self) -> None:
        """Listen, and connect in the background."""
        self.metrics.waiting_for_engine.set_function(lambda: self.pool.num_parked)
        self.metrics.connected_schedulers.set_function(lambda: float(self.pool.is_ready))
        if self.batches is not None:
            self.batches.start()
        await self.server.start()
        self.readiness.start()
        self.vocabularies.start()
        for address in self.settings.schedulers:
            name = self.vocabularies.name_of(address)
            hello = partial(self._hello, name)
            channel = self._channels[address]
            self.pool.add(SchedulerConnection(address, channel, hello, self.pool, vocabulary=name))

    async def close(self) -> None:
        """End everything that `start` began."""
        await self.readiness.close()
        await self.server.grpc.stop(0)
        await self.responses.close()
        if self.batches is not None:
            await self.batches.close()
        await self.pool.close()
        await self.detokenizer.close()
        await self.vocabularies.close()
        for channel in self._channels.values():
            await channel.close()

    def _add_servicers(self) -> None:
        settings, endpoints = (
            self.settings,
            OpenAIEndpoints(
                self.generator,
                self.chat_runner,
                accept_grace_s=self.settings.accept_grace_s,
                has_reasoning_alias=self.settings.reasoning_content_alias,
            ),
        )
        openai.OpenAIServicer(endpoints).add_to(self.server.grpc)
        vectors = PoolingEndpoints(self.pooling_runner)
        pooling.add_pooling(self.server.grpc, vectors)
        tokens.add_tokens(self.server.grpc, TokenEndpoints(self.chat_runner, self.vocabularies.client_of))
        self.responses = ResponseEndpoints(
            self.chat_runner,
            ResponseStore(
                max_responses=settings.max_stored_responses, max_bytes=settings.max_stored_response_bytes
            ),
            settings.mcp(),
            accept_grace_s=settings.accept_grace_s,
        )
        responses.add_responses(self.server.grpc, self.responses)
        self.batches = self._make_batches(endpoints, vectors)
        batch_endpoints = BatchEndpoints(self.batches)
        batches.add_files(self.server.grpc, batch_endpoints)
        batches.add_batches(self.server.grpc, batch_endpoints)
        anthropic.add_anthropic(
            self.server.grpc,
            AnthropicEndpoints(self.chat_runner, accept_grace_s=settings.accept_grace_s),
        )
        typed = inference.InferenceServicer(
            self.generator,
            self.pool,
            self.chat_runner,
            pooling.PoolingServicer(self.pooling_runner),
            tokenizer_of=self.vocabularies.client_of,
            accept_grace_s=settings.accept_grace_s,
        )
        add(self.server, add_InferenceServicer_to_server, typed)
        operations = admin.AdminServicer(
            self.admission, self.readiness, drain_timeout_s=settings.drain_timeout_s
        )
        add(self.server, add_AdminServicer_to_server, operations)
        engines = EngineOperations({address: self._channels[address] for address in settings.schedulers})
        self.managing = management.ManagementServicer(
            engines,
            self.generator,
            self.pool,
            self.admission,
            self.readiness,
            self._registry,
            clients=settings.management_clients,
        )
        add(self.server, add_ManagementServicer_to_server, self.managing)

    def _tokenizer_client(self, addresses: Sequence[str]) -> TokenizerClient:
        return TokenizerClient(
            [(address, self._channels[address]) for address in addresses],
            wait_timeout_s=self.settings.resume_timeout_s,
            call_timeout_s=self.settings.tokenize_timeout_s,
            on_change=self._on_change,
        )

    def _has_dependencies(self) -> bool:
        """At first every model's engine and tokenizer must be there; later one of them is enough to serve something."""
        usable = self.vocabularies.usable(self.pool.ready_addresses)
        return any(usable) if self._has_served else all(usable)

    def _make_batches(self, endpoints: OpenAIEndpoints, vectors: PoolingEndpoints) -> BatchRunner | None:
        settings = self.settings
        if settings.batch_folder is None:
            return None
        served = {
            "/v1/chat/completions": endpoints.chat_completions,
            "/v1/completions": endpoints.completions,
            "/v1/embeddings": vectors.embeddings,
            "/v1/responses": self.responses.create,
        }
        return BatchRunner(
            settings.batch_folder,
            served,
            max_bytes=settings.max_file_bytes,
            concurrency=settings.batch_concurrency,
            priority=settings.batch_priority,
            is_ready=lambda: self._has_dependencies() and not self.admission.is_draining,
        )

    async def _hello(self, vocabulary: str) -> serve_pb2.Hello:
        # Only with a tokenizer can an engine be checked against it, and tokens be text.
        info = await self.vocabularies.client(vocabulary).wait_known()
        if vocabulary == SHARED:
            self._choose_detokenizer(info)
        return serve_pb2.Hello(gateway_id=self.settings.gateway_id, tokenizer_fingerprint=info.fingerprint)

    def _choose_detokenizer(self, info: TokenizerInfo) -> None:
        if self._is_chosen:
            return
        if joins_bytes(self.settings.detokenize, info.is_text_bytes):
            self.pool.detokenizer = ByteDetokenizer(
                info.vocabulary,
                special_token_ids=info.special_token_ids,
                num_leading_spaces_stripped=info.num_leading_spaces_stripped,
            )
        self.detokenizer.start()
        self._is_chosen = True

    def _refusal_of(self, model: ServedModel) -> str | None:
        """An engine whose model has fewer token ids than the tokenizer would be asked for rows it does not have."""
        if model.vocabulary != SHARED and ModelTask.GENERATE in model.tasks:
            return f"model {model.id} generates text; an engine with a tokenizer of its own may only make vectors"
        info = self.vocabularies.client_of(model).info
        if info is None or info.vocab_size <= model.vocab_size:
            return None
        return f"model {model.id} has {model.vocab_size} token ids, the tokenizer {info.vocab_size}"

    def _on_change(self) -> None:
        self.readiness.update()

    async def _publish(self, is_ready: bool) -> None:
        if is_ready and not self._has_served:
            self._has_served = True
            await self.server.ready()
        else:
            await self.server.health.set_ready(is_ready)


def _own_tokenizers(settings: GatewaySettings) -> list[str]:
    """Addresses of the tokenizers that are one engine's own."""
    by_scheduler = parse_engine_tokenizers(settings.engine_tokenizers)
    return [address for addresses in by_scheduler.values() for address in addresses]


async def serve(settings: GatewaySettings) -> None:
    """Run a gateway until the process is told to stop."""
    metrics = Metrics(settings.service)
    async with AsyncExitStack() as stack:
        stack.callback(metrics.close)
        gateway = Gateway(settings, metrics)
        stack.push_async_callback(gateway.close)
        metrics.serve(settings.metrics_listen)
        await gateway.start()
        await gateway.server.run_until_stopped()


def main() -> None:
    """Console script."""
    run_service(GatewaySettings, serve)


if __name__ == "__main__":
    main()
