"""From a client's request to its output: the engine room of both public APIs.

One job: tokenise, resolve defaults, check limits, place the request, hand out its news, and leave nothing behind
whatever ends it. Knows no dialect; the servicers and the OpenAI layer translate.
"""

from __future__ import annotations

import asyncio
import secrets
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Protocol

from quire_gateway.active_request import ActiveRequest, EngineRequest
from quire_gateway.admission import Admission
from quire_gateway.metrics import GatewayMetrics
from quire_gateway.models import ServedModel
from quire_gateway.outlet import Outlet
from quire_gateway.pacing import Pacer
from quire_gateway.requests import (
    CallInfo,
    ChatPrompt,
    GenerationRequest,
    TextPrompt,
    TokenPrompt,
    validate_request,
)
from quire_gateway.sampling import resolve, validate
from quire_gateway.sequences import OutputSpec, SequenceState, WakeOn
from quire_gateway.tokenizer_client import TokenizerInfo
from quire_servicekit.errors import InvalidRequest, QuireError, Unsupported
from quire_servicekit.logging import get_logger

log = get_logger("generation")


class Tokenizer(Protocol):
    """What generation needs of the tokenizer client."""

    info: TokenizerInfo | None

    async def encode(self, texts: Sequence[str], *, add_special_tokens: bool = True) -> list[list[int]]:
        """The token ids of each text."""

    async def render_chat(self, prompt: ChatPrompt) -> tuple[str, list[int]]:
        """The conversation by the model's chat template, and its token ids."""

    async def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of token ids."""


class Engines(Protocol):
    """What generation needs of the scheduler pool."""

    def model(self, name: str) -> ServedModel:
        """The model of that name; empty: the only one. Raises UnknownModel or Unavailable."""

    def models(self) -> list[ServedModel]:
        """The served models by name."""

    def submit(self, request: ActiveRequest) -> None:
        """Place a request; its outcome comes through its outlet."""

    def release(self, request: ActiveRequest) -> None:
        """Nothing more is wanted. Idempotent."""


class Generation:
    """One client call under way: one or several prompts, each with n sequences."""

    def __init__(self, call_id: str, route: str, outlet: Outlet, metrics: GatewayMetrics) -> None:
        self.id, self.outlet = call_id, outlet
        self.requests: list[ActiveRequest] = []
        #: Output is read as it comes, so that its latencies mean something.
        self.is_streamed = True
        self._first_token = metrics.time_to_first_token.labels(route)
        self._between = metrics.inter_token_latency.labels(route)
        self._now = asyncio.get_running_loop().time
        self.started_at = self._now()
        self.first_output_at: float | None = None
        self._last_output_at = 0.0

    @property
    def model(self) -> ServedModel:
        """The model that serves it."""
        return self.requests[0].spec.model

    @property
    def sequences(self) -> list[SequenceState]:
        """All sequences by choice index."""
        return [sequence for request in self.requests for sequence in request.sequences]

    @property
    def is_complete(self) -> bool:
        """Every sequence has ended. What they gained last may still wait to be taken."""
        return all(request.num_unfinished == 0 for request in self.requests)

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of all prompts."""
        return sum(len(request.spec.prompt_token_ids) for request in self.requests)

    @property
    def num_output_tokens(self) -> int:
        """Output tokens of all sequences so far."""
        return sum(request.num_output_tokens for request in self.requests)

    @property
    def num_cached_tokens(self) -> int:
        """Prompt tokens that an engine found in its prefix cache."""
        return sum(request.num_cached_tokens for request in self.requests)

    async def wait_accepted(self, timeout_s: float) -> None:
        """Return when the engine took the call, or after `timeout_s` without a refusal; raises the refusal."""
        await self.outlet.wait_accepted(timeout_s)

    async def news(self) -> list[SequenceState]:
        """Wait for sequences with something to `take`; raises what ended the call early."""
        touched = await self.outlet.take()
        now = self._now()
        if not self.is_streamed:
            return touched
        if self.first_output_at is None:
            self.first_output_at = now
            self._first_token.observe(now - self.started_at)
        else:
            self._between.observe(now - self._last_output_at)
        self._last_output_at = now
        return touched


class Generator:
    """Runs client calls."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        engines: Engines,
        admission: Admission,
        pacer: Pacer,
        metrics: GatewayMetrics,
    ) -> None:
        self.tokenizer, self.engines = tokenizer, engines
        self._admission, self._pacer, self._metrics = admission, pacer, metrics

    @asynccontextmanager
    async def run(
        self,
        requests: Sequence[GenerationRequest],
        call: CallInfo,
        *,
        route: str,
        names: Mapping[str, str] | None = None,
    ) -> AsyncIterator[Generation]:
        """One client call, from admission to the release of everything.

        All `requests` share model, n and output options; they differ in their prompts. names: what the dialect calls
        our fields ("prompt" too). Raises QuireErrors; cancelling aborts at the engine.
        """
        generation = Generation(uuid.uuid4().hex, route, Outlet(self._pacer), self._metrics)
        status = "cancelled"
        try:
            model = self.engines.model(requests[0].model)
            for request in requests:
                validate_request(request)
                validate(request.sampling, model.vocab_size, names)
            with self._admission.permit(call.tenant, sum(request.n for request in requests)):
                self._metrics.in_flight.set(self._admission.num_in_flight)
                prompts = await self._tokenise(requests, names or {})
                for request, token_ids in zip(requests, prompts, strict=True):
                    self._add(generation, request, model, token_ids, call, names or {})
                generation.is_streamed = requests[0].wake_on is not WakeOn.END
                for active in generation.requests:
                    self.engines.submit(active)
                yield generation
            status = "ok"
        except QuireError as error:
            status = type(error).__name__
            raise
        except Exception:
            status = "InternalError"
            raise
        finally:
            for active in generation.requests:
                self.engines.release(active)
            self._report(generation, route, status, call)

    @contextmanager
    def reading(self, route: str, call: CallInfo) -> Iterator[None]:
        """Around reading a call's body: a refusal there is logged and counted like one of a call that ran."""
        try:
            yield
        except QuireError as error:
            status = type(error).__name__
            self._metrics.requests.labels(route, status).inc()
            log.info(
                "request refused",
                client_request_id=call.client_request_id,
                route=route,
                status=status,
                tenant=call.tenant,
                field=getattr(error, "field", None) or getattr(error, "parameter", None),
            )
            raise

    async def _tokenise(
        self, requests: Sequence[GenerationRequest], names: Mapping[str, str]
    ) -> list[list[int]]:
        """The token ids of each prompt; texts go in one call."""
        try:
            prompts = [request.prompt for request in requests]
            if isinstance(prompts[0], TextPrompt):
                texts = [prompt.text for prompt in prompts if isinstance(prompt, TextPrompt)]
                return await self.tokenizer.encode(texts, add_special_tokens=prompts[0].add_special_tokens)
            return [await self._tokenise_one(prompt) for prompt in prompts]
        except InvalidRequest as error:
            # The tokenizer names its own field; the client knows only the one it wrote.
            field = names.get(error.field) or names.get("prompt", "prompt")
            raise InvalidRequest(
                field, error.limit, error.value, message=error.message, code=error.code
            ) from error

    async def _tokenise_one(self, prompt: object) -> list[int]:
        if isinstance(prompt, ChatPrompt):
            info = self.tokenizer.info
            if info is not None and not info.has_chat_template:
                raise Unsupported("messages", message="this model has no chat template: use a plain prompt")
            return (await self.tokenizer.render_chat(prompt))[1]
        assert isinstance(prompt, TokenPrompt)
        return list(prompt.token_ids)

    def _add(
        self,
        generation: Generation,
        request: GenerationRequest,
        model: ServedModel,
        token_ids: list[int],
        call: CallInfo,
        names: Mapping[str, str],
    ) -> None:
        sampling = resolve(
            request.sampling,
            model.default_sampling,
            seed=secrets.randbits(64),
            max_tokens=_room(request, model, token_ids, names),
        )
        if sampling.min_tokens and sampling.max_tokens and sampling.min_tokens > sampling.max_tokens:
            raise InvalidRequest("min_tokens", f"at most {sampling.max_tokens}", sampling.min_tokens)
        number = len(generation.requests)
        spec = EngineRequest(
            id=generation.id if number == 0 else f"{generation.id}-{number}",
            model=model,
            prompt_token_ids=token_ids,
            sampling=sampling,
            n=request.n,
            priority=request.priority,
            tenant=call.tenant,
            cache_salt=request.cache_salt,
            traceparent=call.traceparent,
            deadline=generation.started_at + call.timeout_s if call.timeout_s is not None else None,
            skip_special_tokens=request.skip_special_tokens,
            detokenize=request.detokenize,
        )
        output = OutputSpec(
            request.stop,
            request.include_stop_text,
            frozenset(sampling.stop_token_ids),
            wake_on=request.wake_on,
        )
        info = self.tokenizer.info
        active = ActiveRequest(
            spec,
            generation.outlet,
            output,
            first_choice_index=number * request.n,
            vocabulary=info.vocabulary if info is not None else (),
            on_finished=self.engines.release,
        )
        generation.requests.append(active)

    def _report(self, generation: Generation, route: str, status: str, call: CallInfo) -> None:
        """One line and the metrics of a call that ended. Never a word of its text."""
        metrics, elapsed_s = self._metrics, asyncio.get_running_loop().time() - generation.started_at
        metrics.in_flight.set(self._admission.num_in_flight)
        metrics.requests.labels(route, status).inc()
        metrics.request_latency.labels(route).observe(elapsed_s)
        if generation.requests:
            metrics.prompt_tokens.inc(generation.num_prompt_tokens)
            metrics.cached_tokens.inc(generation.num_cached_tokens)
            metrics.output_tokens.inc(generation.num_output_tokens)
            metrics.request_prompt_tokens.labels(route).observe(generation.num_prompt_tokens)
            metrics.request_output_tokens.labels(route).observe(generation.num_output_tokens)
        reasons = [sequence.finish.reason.value for sequence in generation.sequences if sequence.finish]
        for reason in reasons:
            metrics.sequences_finished.labels(reason).inc()
        first_at = generation.first_output_at
        log.info(
            "request finished",
            id=generation.id,
            client_request_id=call.client_request_id,
            route=route,
            status=status,
            tenant=call.tenant,
            num_prompt_tokens=generation.num_prompt_tokens,
            num_cached_tokens=generation.num_cached_tokens,
            num_output_tokens=generation.num_output_tokens,
            finish_reasons=",".join(reasons),
            first_output_ms=round((first_at - generation.started_at) * 1e3, 1)
            if first_at is not None
            else None,
            elapsed_ms=round(elapsed_s * 1e3, 1),
        )


def _room(
    request: GenerationRequest, model: ServedModel, token_ids: list[int], names: Mapping[str, str]
) -> int:
    """Tokens that may be generated at most if the request names no limit. Raises InvalidRequest when it doesn't fit."""
    field, num_prompt, limit = names.get("prompt", "prompt"), len(token_ids), model.max_model_len
    if num_prompt == 0:
        raise InvalidRequest(field, "at least one token", 0)
    for token_id in token_ids if isinstance(request.prompt, TokenPrompt) else ():
        if token_id >= model.vocab_size:
            raise InvalidRequest(field, f"token ids from 0 to {model.vocab_size - 1}", token_id)
    max_tokens = request.sampling.max_tokens
    if num_prompt + (max_tokens or 1) > limit:
        raise InvalidRequest(
            field,
            limit,
            num_prompt,
            message=f"This model's maximum context length is {limit} tokens. However, you requested "
            f"{num_prompt + (max_tokens or 1)} tokens ({num_prompt} in the {field}, {max_tokens or 1} in the "
            f"completion). Please reduce the length of the {field} or completion.",
            code="context_length_exceeded",
        )
    return limit - num_prompt
