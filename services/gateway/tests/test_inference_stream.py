"""The typed stream while its client reads slowly: what arrives during a write is told exactly once."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from quire.inference.v1 import generate_pb2
from quire_gateway.active_request import ActiveRequest, EngineRequest
from quire_gateway.generation import Generation
from quire_gateway.metrics import GatewayMetrics
from quire_gateway.models import ServedModel
from quire_gateway.outlet import Outlet
from quire_gateway.pacing import Pacer
from quire_gateway.sampling import Sampling
from quire_gateway.sequences import FinishReason, OutputSpec, WakeOn
from quire_gateway.servicers.inference import InferenceServicer

MODEL = ServedModel(
    id="m",
    max_model_len=100,
    vocab_size=100,
    eos_token_ids=(2,),
    default_sampling=Sampling(),
    created_unix_s=0,
    fingerprint="f" * 64,
)


class OneGeneration:
    """A generator whose calls all are the one generation that a test feeds."""

    def __init__(self, n: int) -> None:
        outlet = Outlet(Pacer())
        self.generation = Generation("g", "generate", outlet, GatewayMetrics())
        spec = EngineRequest(id="g", model=MODEL, prompt_token_ids=[5], sampling=Sampling(seed=1), n=n)
        request = ActiveRequest(spec, outlet, OutputSpec(wake_on=WakeOn.TOKENS))
        request.accept()
        self.generation.requests.append(request)
        self.tokenizer = SimpleNamespace(info=None)

    @asynccontextmanager
    async def run(self, requests: Any, call: Any, **options: Any) -> AsyncIterator[Generation]:
        """The generation."""
        yield self.generation

    @contextmanager
    def reading(self, route: str, call: Any) -> Iterator[None]:
        """Reading a body refuses nothing here."""
        yield

    def deliver(self, index: int, token_id: int, reason: FinishReason | None = None) -> None:
        """One token of a sequence, the last one with a reason."""
        self.generation.sequences[index].deliver("x", [token_id], [], 0, reason)


CONTEXT = SimpleNamespace(invocation_metadata=lambda: (), time_remaining=lambda: None)


@pytest.mark.parametrize("n", [1, 3])
async def test_last_token_that_arrives_during_a_write_is_told_once(n: int) -> None:
    """While the client takes a delta every sequence gets its last token: each is told, with one end per sequence."""
    generator: Any = OneGeneration(n)
    request = generate_pb2.GenerateRequest(token_ids=generate_pb2.TokenIds(ids=[5]))
    stream = InferenceServicer(generator, SimpleNamespace(model_infos=list)).Generate(request, CONTEXT)
    events = [await anext(stream)]
    for index in range(n):
        generator.deliver(index, 10 + index)
    # The stream stands in its write of the first delta while the rest arrives.
    events.append(await anext(stream))
    for index in range(n):
        generator.deliver(index, 20 + index, FinishReason.LENGTH)
    events += [event async for event in stream]
    for index in range(n):
        mine = [e for e in events if e.HasField("delta") and e.delta.sequence_index == index]
        assert [token for event in mine for token in event.delta.token_ids] == [10 + index, 20 + index]
    ends = [e.sequence_finished.sequence_index for e in events if e.HasField("sequence_finished")]
    assert sorted(ends) == list(range(n))
    assert events[-1].completed.usage.num_output_tokens == 2 * n
