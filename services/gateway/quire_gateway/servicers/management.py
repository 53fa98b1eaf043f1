"""quire.management.v1.Management: operators and monitors.

One job: who may do what, and how outcomes look. The calls themselves are engine_operations.py's.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Sequence
from typing import Any

import orjson
from google.api import httpbody_pb2
from google.rpc import code_pb2, status_pb2
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from pydantic import BaseModel

from quire.admin.v1 import admin_service_pb2
from quire.management.v1 import management_service_pb2 as messages
from quire.management.v1 import management_service_pb2_grpc
from quire_gateway import __version__
from quire_gateway.admission import Admission
from quire_gateway.anthropic.requests import CountRequest, MessagesRequest
from quire_gateway.engine_operations import EngineOperations, Outcome
from quire_gateway.generation import Generator
from quire_gateway.http_answer import JSON, Head
from quire_gateway.openai.batch_endpoints import BatchRequest
from quire_gateway.openai.chat_request import ChatRequest
from quire_gateway.openai.completion_request import CompletionRequest
from quire_gateway.openai.pooling_requests import (
    ClassifyRequest,
    EmbeddingRequest,
    PoolingRequest,
    RerankRequest,
    ScoreRequest,
)
from quire_gateway.openai.response_request import ResponseRequest
from quire_gateway.openai.token_requests import DetokenizeRequest, TokenizeRequest
from quire_gateway.openapi.document import document, load_contracts
from quire_gateway.openapi.page import page
from quire_gateway.readiness import Readiness
from quire_gateway.scheduler_pool import SchedulerPool
from quire_gateway.servicers.calls import call_info
from quire_gateway.servicers.http_bodies import send_head
from quire_servicekit.error_details import status_of
from quire_servicekit.errors import InvalidRequest, PermissionDenied

SERVICE_NAME: str = messages.DESCRIPTOR.services_by_name["Management"].full_name
MAX_ABORTED_IDS = 1024

#: Services that clients reach through the edge, in the order of the documentation.
PUBLIC_SERVICES = (
    "quire.openai.v1.OpenAI",
    "quire.openai.v1.Responses",
    "quire.openai.v1.Files",
    "quire.openai.v1.Batches",
    "quire.anthropic.v1.Anthropic",
    "quire.inference.v1.Inference",
    SERVICE_NAME,
)
#: What parses the bodies of the dialects' paths.
BODIES: dict[str, type[BaseModel]] = {
    "/v1/chat/completions": ChatRequest,
    "/v1/completions": CompletionRequest,
    "/v1/chat/completions/render": ChatRequest,
    "/v1/completions/render": CompletionRequest,
    "/tokenize": TokenizeRequest,
    "/detokenize": DetokenizeRequest,
    "/v1/responses": ResponseRequest,
    "/v1/batches": BatchRequest,
    "/v1/embeddings": EmbeddingRequest,
    "/v1/score": ScoreRequest,
    "/v1/rerank": RerankRequest,
    "/v1/classify": ClassifyRequest,
    "/v1/pooling": PoolingRequest,
    "/v1/messages": MessagesRequest,
    "/v1/messages/count_tokens": CountRequest,
}


class ManagementServicer(management_service_pb2_grpc.ManagementServicer):
    """Serves one gateway's view of the suite. Adapters answer UNIMPLEMENTED, as the generated base class does."""

    def __init__(
        self,
        operations: EngineOperations,
        generator: Generator,
        pool: SchedulerPool,
        admission: Admission,
        readiness: Readiness,
        registry: CollectorRegistry,
        *,
        clients: Collection[str],
    ) -> None:
        """clients: names of the edge's clients that may operate. Where the edge names none (no keys), everyone may."""
        self._operations, self._generator, self._pool = operations, generator, pool
        self._admission, self._readiness, self._registry = admission, readiness, registry
        self._clients = frozenset(clients)

    # ---- Reads -------------------------------------------------------------------------------------------------

    async def GetReady(self, request: messages.GetReadyRequest, context: Any) -> httpbody_pb2.HttpBody:
        """See the contract."""
        reason = await self._unready_reason()
        answer: dict[str, Any] = {"ready": not reason}
        if reason:
            answer["reason"] = reason
            await send_head(context, Head(503, JSON))
        return httpbody_pb2.HttpBody(content_type=JSON, data=orjson.dumps(answer))

    async def _unready_reason(self) -> str:
        """Why nothing can be served now; empty if something can."""
        if self._admission.is_draining:
            return "draining"
        if not self._readiness.has_dependencies:
            return "an engine or a tokenizer is missing"
        # A connected engine may still run nothing: it sleeps, or an operator paused it.
        outcomes = await self._operations.status()
        states = [outcome.answer.state for outcome in outcomes if outcome.answer is not None]
        if not states or admin_service_pb2.SERVICE_STATE_SERVING in states:
            return ""
        names = {admin_service_pb2.ServiceState.Name(state) for state in states}
        words = sorted(name.removeprefix("SERVICE_STATE_").lower() for name in names)
        return f"no engine serves: {', '.join(words)}"

    async def GetVersion(
        self, request: messages.GetVersionRequest, context: Any
    ) -> messages.GetVersionResponse:
        """See the contract."""
        return messages.GetVersionResponse(version=__version__)

    async def GetMetrics(self, request: messages.GetMetricsRequest, context: Any) -> httpbody_pb2.HttpBody:
        """See the contract."""
        return httpbody_pb2.HttpBody(
            content_type=CONTENT_TYPE_LATEST, data=generate_latest(self._registry) + _engine_lines(self._pool)
        )

    async def GetOpenApi(self, request: messages.GetOpenApiRequest, context: Any) -> httpbody_pb2.HttpBody:
        """See the contract."""
        return httpbody_pb2.HttpBody(content_type=JSON, data=orjson.dumps(api_document()))

    async def GetDocs(self, request: messages.GetDocsRequest, context: Any) -> httpbody_pb2.HttpBody:
        """See the contract."""
        return httpbody_pb2.HttpBody(content_type="text/html; charset=utf-8", data=page(api_document()))

    async def GetLoad(self, request: messages.GetLoadRequest, context: Any) -> messages.GetLoadResponse:
        """See the contract."""
        engines = [
            messages.EngineLoad(
                engine=connection.address,
                model=connection.model.id if connection.model is not None else "",
                is_connected=connection.is_ready,
                load=connection.load if connection.is_ready else None,
            )
            for connection in self._pool.connections
        ]
        return messages.GetLoadResponse(num_in_flight=self._admission.num_in_flight, engines=engines)

    async def ListEngines(
        self, request: messages.ListEnginesRequest, context: Any
    ) -> messages.ListEnginesResponse:
        """See the contract."""
        self._allow(context)
        return messages.ListEnginesResponse(
            engines=[
                messages.Engine(engine=outcome.engine, scheduler=outcome.answer, status=_status(outcome))
                for outcome in await self._operations.status()
            ]
        )

    # ---- Operations --------------------------------------------------------------------------------------------

    async def Drain(self, request: messages.DrainRequest, context: Any) -> messages.DrainResponse:
        """See the contract."""
        self._allow(context)
        timeout_s = request.timeout_s if request.HasField("timeout_s") else None
        if timeout_s is not None and not 0 <= timeout_s <= 86400:
            raise InvalidRequest("timeout_s", "from 0 to 86400 seconds", timeout_s)
        outcomes = await self._operations.drain(request.engine, timeout_s)
        num_in_flight = sum(outcome.answer.num_in_flight for outcome in outcomes if outcome.answer)
        return messages.DrainResponse(outcomes=_outcomes(outcomes), num_in_flight=num_in_flight)

    async def Pause(self, request: messages.PauseRequest, context: Any) -> messages.PauseResponse:
        """See the contract."""
        self._allow(context)
        return messages.PauseResponse(outcomes=_outcomes(await self._operations.pause(request.engine)))

    async def Resume(self, request: messages.ResumeRequest, context: Any) -> messages.ResumeResponse:
        """See the contract."""
        self._allow(context)
        return messages.ResumeResponse(outcomes=_outcomes(await self._operations.resume(request.engine)))

    async def Sleep(self, request: messages.SleepRequest, context: Any) -> messages.SleepResponse:
        """See the contract."""
        self._allow(context)
        return messages.SleepResponse(outcomes=_outcomes(await self._operations.sleep(request.engine)))

    async def Wake(self, request: messages.WakeRequest, context: Any) -> messages.WakeResponse:
        """See the contract."""
        self._allow(context)
        return messages.WakeResponse(outcomes=_outcomes(await self._operations.wake(request.engine)))

    async def ResetPrefixCache(
        self, request: messages.ResetPrefixCacheRequest, context: Any
    ) -> messages.ResetPrefixCacheResponse:
        """See the contract."""
        self._allow(context)
        outcomes = await self._operations.reset_prefix_cache(request.engine)
        num_blocks = sum(outcome.answer.num_blocks for outcome in outcomes if outcome.answer)
        return messages.ResetPrefixCacheResponse(outcomes=_outcomes(outcomes), num_blocks=num_blocks)

    async def AbortRequests(
        self, request: messages.AbortRequestsRequest, context: Any
    ) -> messages.AbortRequestsResponse:
        """See the contract."""
        self._allow(context)
        if len(request.request_ids) > MAX_ABORTED_IDS:
            raise InvalidRequest("request_ids", f"at most {MAX_ABORTED_IDS}", len(request.request_ids))
        return messages.AbortRequestsResponse(num_aborted=self._generator.abort(request.request_ids))

    async def StartProfile(
        self, request: messages.StartProfileRequest, context: Any
    ) -> messages.StartProfileResponse:
        """See the contract."""
        self._allow(context)
        outcomes = await self._operations.start_profile(request.engine)
        return messages.StartProfileResponse(outcomes=_outcomes(outcomes))

    async def StopProfile(
        self, request: messages.StopProfileRequest, context: Any
    ) -> messages.StopProfileResponse:
        """See the contract."""
        self._allow(context)
        outcomes = await self._operations.stop_profile(request.engine)
        paths = [outcome.answer.path if outcome.answer else "" for outcome in outcomes]
        return messages.StopProfileResponse(outcomes=_outcomes(outcomes), paths=paths)

    def _allow(self, context: Any) -> None:
        """Raise PermissionDenied for a client that may not operate."""
        client = call_info(context).tenant
        if client and client not in self._clients:
            raise PermissionDenied(
                f"client {client!r} may not operate this server; management_clients names those who may"
            )


@functools.cache
def api_document() -> dict[str, Any]:
    """The OpenAPI document; made when it is first asked for."""
    return document(load_contracts(), PUBLIC_SERVICES, BODIES, __version__)


def _status(outcome: Outcome) -> status_pb2.Status:
    return status_pb2.Status(code=code_pb2.OK) if outcome.error is None else status_of(outcome.error)


def _outcomes(outcomes: Sequence[Outcome]) -> list[messages.EngineOutcome]:
    return [messages.EngineOutcome(engine=outcome.engine, status=_status(outcome)) for outcome in outcomes]


#: What routers of inference gateways read of each engine: name, help, value of a Load.
_ENGINE_GAUGES: tuple[tuple[str, str, Callable[[Any], float]], ...] = (
    ("quire_num_requests_running", "Sequences in the batch.", lambda load: load.num_running),
    ("quire_num_requests_waiting", "Requests that wait.", lambda load: load.num_waiting),
    (
        "quire_kv_cache_usage_perc",
        "Share of the blocks that sequences hold, 0 to 1.",
        lambda load: load.num_used_blocks / load.num_total_blocks if load.num_total_blocks else 0.0,
    ),
)


def _engine_lines(pool: SchedulerPool) -> bytes:
    """The engines' load in Prometheus' text form."""
    lines = []
    for name, text, value in _ENGINE_GAUGES:
        lines += [f"# HELP {name} {text}", f"# TYPE {name} gauge"]
        for connection in pool.connections:
            if connection.model is not None:
                labels = (
                    f'engine="{_escaped(connection.address)}",model_name="{_escaped(connection.model.id)}"'
                )
                lines.append(f"{name}{{{labels}}} {value(connection.load):g}")
    return ("\n".join(lines) + "\n").encode()


def _escaped(label: str) -> str:
    return label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
