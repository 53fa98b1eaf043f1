"""From a client's request to its output: the engine room of both public APIs.

One job: tokenise, resolve defaults, check limits, place the request, hand out its news, and leave nothing behind
whatever ends it. Knows no dialect; the servicers and the OpenAI layer translate.
"""

from __future__ import annotations

import asyncio
import dataclasses
import secrets
import uuid
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Protocol

from quire_gateway.active_request import ActiveRequest, EngineRequest
from quire_gateway.admission import Admission
from quire_gateway.beam_search import run_beam_search, validate_beam_search
from quire_gateway.metrics import GatewayMetrics
from quire_gateway.models import ModelTask, ServedModel
from quire_gateway.outlet import Outlet
from quire_gateway.pacing import Pacer
from quire_gateway.prompts import EncodedPrompt, Tokenizer, encode_bad_words, encode_prompts, fit
from quire_gateway.requests import (
    CallInfo,
    ChatPrompt,
    GenerationRequest,
    Prompt,
    validate_request,
)
from quire_gateway.rules import RequestRules
from quire_gateway.sampling import Sampling, resolve, validate, validate_bad_sequences
from quire_gateway.sequences import OutputSpec, SequenceState, WakeOn
from quire_gateway.structured import renamed
from quire_servicekit.errors import InvalidRequest, QuireError, RequestAborted, Unsupported
from quire_servicekit.logging import get_logger

log = get_logger("generation")


class Engines(Protocol):
    """What generation needs of the scheduler pool."""

    def model(self, name: str, task: ModelTask | None = ModelTask.GENERATE) -> ServedModel:
        """The model of that name, which can do `task` (None: whatever it can); empty: the only one that can.

        Raises UnknownModel, Unavailable, or InvalidRequest for a model that can't."""

    def models(self) -> list[ServedModel]:
        """The served models by name."""

    def submit(self, request: ActiveRequest) -> None:
        """Place a request; its outcome comes through its outlet."""

    def release(self, request: ActiveRequest) -> None:
        """Nothing more is wanted. Idempotent."""

    def stop_sequence(self, request: ActiveRequest, sequence: SequenceState) -> None:
        """Nothing more is wanted of one sequence; others of the request go on."""


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
        rules: RequestRules | None = None,
    ) -> None:
        self.tokenizer, self.engines = tokenizer, engines
        self.rules = rules or RequestRules()
        self._admission, self._pacer, self._metrics = admission, pacer, metrics
        #: Calls under way: the id that the client gave, and the call.
        self._running: dict[str, tuple[str, Generation]] = {}

    def abort(self, ids: Collection[str]) -> int:
        """An operator ends calls, by our id or the client's; empty: all. Their clients get RequestAborted. How many."""
        chosen = [
            generation
            for client_id, generation in self._running.values()
            if not ids or generation.id in ids or (client_id and client_id in ids)
        ]
        for generation in chosen:
            generation.outlet.fail(RequestAborted("the request was ended by an operator"))
        return len(chosen)

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
        generation = Generation(uuid.uuid4().hex, route, self.new_outlet(), self._metrics)
        status = "cancelled"
        self._running[generation.id] = call.client_request_id, generation
        try:
            model = self.engines.model(requests[0].model)
            for request in requests:
                self._check(request, model, names)
            with self._admission.permit(call.tenant, sum(request.n for request in requests)):
                self._metrics.in_flight.set(self._admission.num_in_flight)
                await self._prepare(generation, requests, model, call, names or {})
                generation.is_streamed = requests[0].wake_on is not WakeOn.END
                if requests[0].beam_search is not None:
                    await run_beam_search(self, generation, requests)
                else:
                    for active in generation.requests:
                        self.engines.submit(active)
                yield generation
            status = "ok"
        except InvalidRequest as error:
            status = type(error).__name__
            raise renamed(error, names or {}) from error
        except QuireError as error:
            status = type(error).__name__
            raise
        except Exception:
            status = "InternalError"
            raise
        finally:
            del self._running[generation.id]
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

    async def render(
        self, requests: Sequence[GenerationRequest], *, names: Mapping[str, str] | None = None
    ) -> tuple[ServedModel, list[EncodedPrompt]]:
        """The prompts that `run` would have computed, and for which model; nothing runs.

        Raises what `run` raises before it asks an engine.
        """
        called = names or {}
        try:
            model = self.engines.model(requests[0].model)
            for request in requests:
                self._check(request, model, names)
            prompts = await encode_prompts(self.tokenizer, [request.prompt for request in requests], called)
            pairs = zip(requests, prompts, strict=True)
            return model, [fit(request, prompt, model, called) for request, prompt in pairs]
        except InvalidRequest as error:
            raise renamed(error, called) from error

    def new_outlet(self) -> Outlet:
        """A place to wait for news, paced with all others."""
        return Outlet(self._pacer)

    async def prompt_text(self, active: ActiveRequest) -> str:
        """The text of a request's prompt, as it is computed."""
        if active.prompt_text is None:
            spec = active.spec
            active.prompt_text = await self.tokenizer.decode(spec.prompt_token_ids, skip_special_tokens=False)
        return active.prompt_text

    def check_template(self, prompt: Prompt) -> None:
        """Raise Unsupported for a conversation that brings a template where the operator allows none."""
        is_template_brought = isinstance(prompt, ChatPrompt) and prompt.chat_template
        if is_template_brought and not self.rules.trusts_chat_template:
            raise Unsupported(
                "chat_template",
                message="chat_template is not supported: this server takes none from requests",
            )

    def _check(self, request: GenerationRequest, model: ServedModel, names: Mapping[str, str] | None) -> None:
        """Raise for the first field that is out of its limit or not allowed here."""
        validate_request(request, names)
        validate(request.sampling, model.vocab_size, names, max_logprobs=self.rules.max_logprobs)
        self.check_template(request.prompt)
        if request.beam_search is not None:
            validate_beam_search(request, names)

    async def _prepare(
        self,
        generation: Generation,
        requests: Sequence[GenerationRequest],
        model: ServedModel,
        call: CallInfo,
        names: Mapping[str, str],
    ) -> None:
        """Add what the engine is to run: prompts tokenised, defaults resolved."""
        prompts = await encode_prompts(self.tokenizer, [request.prompt for request in requests], names)
        bad = await encode_bad_words(self.tokenizer, requests[0].bad_words, names)
        for request, prompt in zip(requests, prompts, strict=True):
            sampling = request.sampling
            if bad:
                sampling = dataclasses.replace(
                    sampling, bad_token_sequences=(*sampling.bad_token_sequences, *bad)
                )
                validate_bad_sequences(
                    sampling, model.vocab_size, {"bad_token_sequences": "bad_words", **names}
                )
            self._add(generation, request, sampling, model, fit(request, prompt, model, names), call)

    def _defaults(self, model: ServedModel) -> tuple[Sampling, ...]:
        """Where unset parameters get their values, in this order."""
        own = self.rules.default_sampling
        return (own, model.default_sampling) if self.rules.uses_generation_config else (own,)

    def _add(
        self,
        generation: Generation,
        request: GenerationRequest,
        sampling: Sampling,
        model: ServedModel,
        prompt: EncodedPrompt,
        call: CallInfo,
    ) -> None:
        sampling = resolve(
            sampling,
            *self._defaults(model),
            seed=secrets.randbits(64),
            max_tokens=model.max_model_len - len(prompt.token_ids),
            vocab_size=model.vocab_size,
        )
        if sampling.min_tokens and sampling.max_tokens and sampling.min_tokens > sampling.max_tokens:
            raise InvalidRequest("min_tokens", f"at most {sampling.max_tokens}", sampling.min_tokens)
        prompt_text = prompt.text or ""
        if request.reasoning is not None:
            sampling = request.reasoning.settled(sampling, prompt_text)
        number = len(generation.requests)
        spec = EngineRequest(
            id=generation.id if number == 0 else f"{generation.id}-{number}",
            model=model,
            prompt_token_ids=prompt.token_ids,
            sampling=sampling,
            n=request.n,
            priority=request.priority,
            tenant=call.tenant,
            cache_salt=request.cache_salt,
            session_id=request.session_id,
            skip_reading_prefix_cache=request.skip_reading_prefix_cache,
            traceparent=call.traceparent,
            deadline=generation.started_at + call.timeout_s if call.timeout_s is not None else None,
            skip_special_tokens=request.skip_special_tokens,
            detokenize=request.detokenize,
        )
        info = self.tokenizer.info
        active = ActiveRequest(
            spec,
            generation.outlet,
            _output_spec(request, sampling, prompt_text),
            first_choice_index=number * request.n,
            vocabulary=info.vocabulary if info is not None else (),
            on_finished=self.engines.release,
            on_stopped=self.engines.stop_sequence,
            prompt_text=prompt.text,
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


def _output_spec(request: GenerationRequest, sampling: Sampling, prompt_text: str) -> OutputSpec:
    """What the request wants of its sequences' output."""
    marks, new_matcher = request.reasoning, None
    if marks is not None and request.stop:
        new_matcher = partial(
            marks.stop_matcher, request.stop, prompt_text, include_stop_text=request.include_stop_text
        )
    return OutputSpec(
        request.stop,
        request.include_stop_text,
        frozenset(sampling.stop_token_ids),
        wake_on=request.wake_on,
        stream_interval=request.stream_interval,
        new_matcher=new_matcher,
    )
