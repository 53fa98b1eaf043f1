"""From a call to its vectors: tokenise, check, place every input, and leave nothing behind whatever ends it.

One job; knows no dialect. Inputs go to the engines a window at a time, so that a large call fills no queue.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from quire_gateway.active_request import ActiveRequest, EngineRequest
from quire_gateway.admission import Admission
from quire_gateway.metrics import GatewayMetrics
from quire_gateway.models import ModelTask, ServedModel
from quire_gateway.pacing import Pacer
from quire_gateway.pooling.call import PoolingCall, PoolingResult, Vector, validate_call
from quire_gateway.pooling.collecting import Completions, InputOutlet
from quire_gateway.pooling.encoding import EncodedInput, Tokenizer, encode_inputs
from quire_gateway.pooling.params import PoolingParams
from quire_gateway.requests import CallInfo
from quire_gateway.sampling import Sampling
from quire_gateway.sequences import OutputSpec
from quire_servicekit.errors import InvalidRequest, QuireError
from quire_servicekit.logging import get_logger

log = get_logger("pooling")

#: Inputs of one call that engines have at a time.
WINDOW = 256


class Engines(Protocol):
    """What this needs of the scheduler pool."""

    def model(self, name: str, task: ModelTask | None = None) -> ServedModel:
        """The model of that name that can do `task`; empty: the only one. Raises for one that can't."""

    def submit(self, request: ActiveRequest) -> None:
        """Place a request; its outcome comes through its outlet."""

    def release(self, request: ActiveRequest) -> None:
        """Nothing more is wanted. Idempotent."""


@dataclass(slots=True)
class Account:
    """What is told of a call when it has ended."""

    call: CallInfo
    route: str
    id: str
    num_inputs: int = 0
    num_tokens: int = 0


class PoolingRunner:
    """Runs pooled calls."""

    def __init__(
        self,
        tokenizer_of: Callable[[ServedModel], Tokenizer],
        engines: Engines,
        admission: Admission,
        pacer: Pacer,
        metrics: GatewayMetrics,
    ) -> None:
        self.engines = engines
        self._tokenizer_of = tokenizer_of
        self._admission, self._pacer, self._metrics = admission, pacer, metrics

    @contextmanager
    def accounting(self, call: CallInfo, route: str) -> Iterator[Account]:
        """Around a client's call, its reading included: counted and logged once it has ended, well or not."""
        account, status = Account(call, route, uuid.uuid4().hex), "cancelled"
        started_at = asyncio.get_running_loop().time()
        try:
            yield account
            status = "ok"
        except QuireError as error:
            status = type(error).__name__
            raise
        except Exception:
            status = "InternalError"
            raise
        finally:
            self._report(account, status, asyncio.get_running_loop().time() - started_at)

    async def run(self, request: PoolingCall, account: Account) -> PoolingResult:
        """The vectors. Raises QuireErrors, naming the input that is at fault; cancelling aborts at the engines."""
        model = self.engines.model(request.model, request.wants)
        validate_call(request, model)
        call = account.call
        deadline = None
        if call.timeout_s is not None:
            deadline = asyncio.get_running_loop().time() + call.timeout_s
        with self._admission.permit(call.tenant, len(request.inputs)):
            self._metrics.in_flight.set(self._admission.num_in_flight)
            encoded = await encode_inputs(self._tokenizer_of(model), request, model)
            account.num_inputs += len(encoded)
            account.num_tokens += sum(len(item.token_ids) for item in encoded)
            specs = [
                self._spec(f"{account.id}-{index}", request, item, model, call, deadline)
                for index, item in enumerate(encoded)
            ]
            vectors = await self._vectors(specs, request)
        return PoolingResult(model, vectors, [len(item.token_ids) for item in encoded])

    async def _vectors(self, specs: list[EngineRequest], request: PoolingCall) -> list[Vector]:
        completions = Completions()
        vectors: list[Vector | None] = [None] * len(specs)
        running: dict[int, ActiveRequest] = {}
        waiting = iter(range(len(specs)))

        def submit_next() -> None:
            for index in waiting:
                outlet = InputOutlet(
                    self._pacer, completions, index, lambda i, error: _named(request, i, error)
                )
                running[index] = ActiveRequest(
                    specs[index], outlet, OutputSpec(), on_finished=self.engines.release
                )
                self.engines.submit(running[index])
                return

        try:
            for _ in range(min(WINDOW, len(specs))):
                submit_next()
            while running:
                for index in await completions.take():
                    vector = running.pop(index).vector
                    assert vector is not None, "a pooled request ended well without its vector"
                    vectors[index] = np.frombuffer(vector, dtype="<f4")
                    submit_next()
        finally:
            for active in running.values():
                self.engines.release(active)
        return [vector for vector in vectors if vector is not None]

    @staticmethod
    def _spec(
        request_id: str,
        request: PoolingCall,
        item: EncodedInput,
        model: ServedModel,
        call: CallInfo,
        deadline: float | None,
    ) -> EngineRequest:
        params = PoolingParams(request.task, request.num_dimensions, request.normalize)
        return EngineRequest(
            id=request_id,
            model=model,
            prompt_token_ids=item.token_ids,
            sampling=Sampling(),
            priority=request.priority,
            tenant=call.tenant,
            cache_salt=request.cache_salt,
            traceparent=call.traceparent,
            deadline=deadline,
            detokenize=False,
            pooling=replace(params, second_text_start=item.second_text_start),
        )

    def _report(self, account: Account, status: str, elapsed_s: float) -> None:
        """One line and the metrics of a call that ended. Never a word of its texts."""
        metrics, route = self._metrics, account.route
        metrics.in_flight.set(self._admission.num_in_flight)
        metrics.requests.labels(route, status).inc()
        metrics.request_latency.labels(route).observe(elapsed_s)
        if account.num_tokens:
            metrics.prompt_tokens.inc(account.num_tokens)
            metrics.request_prompt_tokens.labels(route).observe(account.num_tokens)
        log.info(
            "request finished",
            id=account.id,
            client_request_id=account.call.client_request_id,
            route=route,
            status=status,
            tenant=account.call.tenant,
            num_inputs=account.num_inputs,
            num_prompt_tokens=account.num_tokens,
            elapsed_ms=round(elapsed_s * 1e3, 1),
        )


def _named(request: PoolingCall, index: int, error: Exception) -> Exception:
    """An engine's refusal of one input, under the client's name for it; any other error as it is."""
    if not isinstance(error, InvalidRequest):
        return error
    name = request.name_of(index)
    return InvalidRequest(name, error.limit, error.value, message=f"{name}: {error.message}", code=error.code)
