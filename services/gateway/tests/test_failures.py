"""What the gateway does when clients go and engines die."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
from gateway_fakes import FakeScheduler, bare_status

from quire_gateway.wire import error_of_rejection
from quire_servicekit.errors import QueueFull, Unavailable, UnknownModel

_LONG = b"The quick brown fox jumps over the lazy dog. " * 6


def _scheduler(**options: Any) -> FakeScheduler:
    return FakeScheduler(text_of=lambda submit, index: b"%d: " % index + _LONG, **options)


async def _until(condition: Any, timeout_s: float = 5) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.002)


def _idle(suite: Any) -> bool:
    gateway = suite.gateway
    return (
        gateway.admission.num_in_flight == 0
        and gateway.pool.num_requests == 0
        and gateway.detokenizer.num_streams == 0
        and all(not server.servicer.running for server in suite.schedulers)
        and all(c.num_dispatched == 0 for c in gateway.pool._connections.values())
    )


# ---- Clients that go -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_streamed", [True, False])
async def test_a_client_that_goes_aborts_its_request(make_suite: Any, is_streamed: bool) -> None:
    """Cancelling reaches the engine, streamed or not, and nothing is left behind."""
    suite = await make_suite([_scheduler(step_s=0.005)])
    call = suite.client.start("Completions", {"prompt": "x", "max_tokens": 200, "stream": is_streamed})
    await _until(lambda: suite.scheduler.running)
    call.cancel()
    await _until(lambda: suite.scheduler.aborts)
    await _until(lambda: _idle(suite))
    await _until(lambda: suite.tokenizer.num_streams == 0)


async def test_a_client_that_goes_before_it_is_accepted_aborts_too(make_suite: Any) -> None:
    """A request that still waits in the engine's queue is aborted as well."""
    suite = await make_suite([_scheduler(is_paused=True)])
    call = suite.client.start("Completions", {"prompt": "x", "stream": True})
    await _until(lambda: suite.scheduler.submits)
    call.cancel()
    await _until(lambda: suite.scheduler.aborts == [suite.scheduler.submits[0].handle])
    await _until(lambda: _idle(suite))


async def test_counters_return_to_zero_after_a_storm_of_cancels(make_suite: Any) -> None:
    """Sixty calls cut at different moments; those that were not cut are complete."""
    suite = await make_suite([_scheduler(step_s=0.001)])
    keep = [asyncio.create_task(suite.client.complete(max_tokens=60, stream=True)) for _ in range(10)]
    calls = [
        suite.client.start(
            "Completions", {"prompt": "x", "max_tokens": 200, "stream": bool(number % 2), "n": 2}
        )
        for number in range(60)
    ]
    for number, call in enumerate(calls):
        if number % 10 == 0:
            await asyncio.sleep(0.01)
        call.cancel()
    answers = await asyncio.gather(*keep)
    assert {answer.text() for answer in answers} == {(b"0: " + _LONG)[:60].decode()}
    await _until(lambda: _idle(suite))


async def test_a_deadline_travels_to_the_engine(suite: Any) -> None:
    """The client's gRPC deadline is the request's time limit; without one there is none."""
    from google.api import httpbody_pb2

    body = httpbody_pb2.HttpBody(data=b'{"prompt": "x"}')
    async for _ in suite.client.openai.Completions(body, timeout=20):
        pass
    await suite.client.complete()
    timed, untimed = suite.scheduler.submits
    # gRPC rounds a deadline on its way.
    assert 15 < timed.timeout.seconds < 25
    assert not untimed.HasField("timeout")


# ---- Engines that die ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("break_after", [1, 2, 7, 100])
async def test_a_broken_stream_is_resumed_without_loss_or_duplicate(
    make_suite: Any, break_after: int
) -> None:
    """The same engine is back at once: every sequence goes on after the tokens it has."""
    suite = await make_suite([_scheduler(break_after=break_after)])
    streamed, whole = await asyncio.gather(
        suite.client.complete(max_tokens=200, n=2, stream=True, stream_options={"include_usage": True}),
        suite.client.complete(max_tokens=150),
    )
    for index in range(2):
        assert streamed.text(index) == (b"%d: " % index + _LONG)[:200].decode()
    assert whole.json["choices"][0]["text"] == (b"0: " + _LONG)[:150].decode()
    assert streamed.chunks[-1]["usage"]["completion_tokens"] == 400
    resumed = [s for submit in suite.scheduler.submits[2:] for s in submit.resumed]
    assert resumed or break_after <= 2
    seeds = {submit.request_id: submit.sampling.seed for submit in suite.scheduler.submits}
    assert all(submit.sampling.seed == seeds[submit.request_id] for submit in suite.scheduler.submits)
    await _until(lambda: _idle(suite))


async def test_a_killed_engine_hands_over_to_another(make_suite: Any) -> None:
    """The requests of a dead engine go on where one lives; only sequences that had not ended are sent."""
    suite = await make_suite([_scheduler(step_s=0.003), _scheduler(step_s=0.003)])
    calls = [
        asyncio.create_task(suite.client.complete(f"{i}", max_tokens=120, stream=True)) for i in range(8)
    ]
    first, second = (server.servicer for server in suite.schedulers)
    await _until(lambda: first.num_frames > 5 and second.num_frames > 5 and first.running)
    await suite.schedulers[0].kill()
    answers = await asyncio.gather(*calls)
    assert {answer.text() for answer in answers} == {(b"0: " + _LONG)[:120].decode()}
    moved = [submit for submit in second.submits if submit.resumed]
    assert moved
    assert suite.gateway.metrics.resumed_requests._value.get() >= len(moved)


async def test_an_engine_that_restarts_gets_its_requests_back(make_suite: Any) -> None:
    """With a single engine the requests wait for it, new ones too, and the health stays ready for a moment."""
    suite = await make_suite([_scheduler(step_s=0.003)], unready_after_s=5)
    running = asyncio.create_task(suite.client.complete(max_tokens=120, stream=True))
    await _until(lambda: suite.scheduler.num_frames > 10)
    await suite.schedulers[0].kill()
    await _until(lambda: not suite.gateway.pool.is_ready)
    new = asyncio.create_task(suite.client.complete(max_tokens=10))
    await _until(lambda: suite.gateway.pool.num_parked == 2)
    assert suite.gateway.server.health.ready
    await suite.schedulers[0].start()
    assert (await running).text() == (b"0: " + _LONG)[:120].decode()
    assert (await new).json["choices"][0]["text"] == (b"0: " + _LONG)[:10].decode()


async def test_waiting_for_an_engine_ends(make_suite: Any) -> None:
    """After the resume timeout: an error event for a stream that has begun, 503 for a new request."""
    suite = await make_suite([_scheduler(step_s=0.003)], resume_timeout_s=0.2, unready_after_s=0.05)
    running = asyncio.create_task(suite.client.complete(max_tokens=200, stream=True))
    await _until(lambda: suite.scheduler.num_frames > 10)
    await suite.schedulers[0].kill()
    events = (await running).events
    assert events[-1]["error"]["code"] == "unavailable"
    answer = await suite.client.complete()
    assert answer.status == 503 and "retry-after" in answer.headers
    await _until(lambda: not suite.gateway.server.health.ready)
    assert suite.gateway.pool.num_requests == 0


async def test_a_client_may_go_while_its_request_waits_for_an_engine(make_suite: Any) -> None:
    """Nothing is sent to the engine that comes back."""
    suite = await make_suite([_scheduler()])
    await suite.schedulers[0].kill()
    await _until(lambda: not suite.gateway.pool.is_ready)
    call = suite.client.start("Completions", {"prompt": "x"})
    await _until(lambda: suite.gateway.pool.num_parked == 1)
    call.cancel()
    await _until(lambda: _idle(suite))
    await suite.schedulers[0].start()
    await _until(lambda: suite.gateway.pool.is_ready)
    assert suite.scheduler.submits == []


@pytest.mark.parametrize("error", [QueueFull(2), Unavailable("worker")])
async def test_a_refusing_engine_is_passed_over(make_suite: Any, error: Exception) -> None:
    """What one engine cannot take another may; the client notices nothing."""
    refusing, willing = _scheduler(reject_with=error), _scheduler()
    suite = await make_suite([refusing, willing])
    answers = await asyncio.gather(*(suite.client.complete(f"{i}", max_tokens=5) for i in range(8)))
    assert {answer.status for answer in answers} == {200}
    assert refusing.submits and len(willing.submits) == 8


async def test_an_engine_that_is_unavailable_for_a_moment_is_asked_again(make_suite: Any) -> None:
    """With no other engine the request waits and is tried again, rather than fail."""
    scheduler = _scheduler(reject_with=Unavailable("worker", 0.05))
    suite = await make_suite([scheduler])
    answer = asyncio.create_task(suite.client.complete(max_tokens=5))
    await _until(lambda: len(scheduler.submits) >= 2)
    scheduler.reject_with = None
    assert (await answer).status == 200


async def test_a_refusal_that_all_engines_would_give_is_the_clients(make_suite: Any) -> None:
    """An error that lies in the request is passed on and not tried elsewhere."""
    suite = await make_suite(
        [_scheduler(reject_with=UnknownModel("gone")), _scheduler(reject_with=UnknownModel("gone"))]
    )
    assert (await suite.client.complete()).status == 404
    assert sum(len(server.servicer.submits) for server in suite.schedulers) == 1


async def test_an_engine_that_ends_a_request_by_itself_is_no_normal_finish(make_suite: Any) -> None:
    """A request that its engine aborted goes on elsewhere."""
    suite = await make_suite([_scheduler(), _scheduler()])
    # Of two idle engines the one whose address comes first is taken.
    first = min(suite.schedulers, key=lambda server: server.address).servicer
    first.end_with = 3
    answers = [await suite.client.complete(f"{i}", max_tokens=20) for i in range(6)]
    assert {answer.json["choices"][0]["text"] for answer in answers} == {(b"0: " + _LONG)[:20].decode()}
    assert len(first.submits) == 6


async def test_a_request_that_takes_engine_after_engine_with_it_is_given_up(make_suite: Any) -> None:
    """After so many losses it fails, so that one poisonous request cannot bring down all engines for ever."""
    scheduler = _scheduler(step_s=0.002)
    suite = await make_suite([scheduler])

    def poison(submit: Any, index: int) -> bytes:
        scheduler.break_after = 0
        return _LONG

    scheduler.text_of = poison
    answer = await suite.client.complete(max_tokens=200)
    assert answer.status == 500
    assert len(scheduler.submits) == 9
    scheduler.break_after = None
    scheduler.text_of = lambda submit, index: b"well"
    assert (await suite.client.complete()).status == 200


async def test_a_frame_that_makes_no_sense_costs_only_the_stream(make_suite: Any, monkeypatch: Any) -> None:
    """An engine's nonsense breaks the stream, which is made anew; the request goes on."""
    suite = await make_suite([_scheduler(step_s=0.002)])
    pool, broken = suite.gateway.pool, []
    apply = type(pool)._apply

    def once(self: Any, connection: Any, request: Any, row: Any, sampled_at: int) -> None:
        if not broken:
            broken.append(row)
            row = row._replace(sequence_index=99)
        apply(self, connection, request, row, sampled_at)

    monkeypatch.setattr(type(pool), "_apply", once)
    answer = await suite.client.complete(max_tokens=50)
    assert answer.json["choices"][0]["text"] == (b"0: " + _LONG)[:50].decode()
    assert broken and len(suite.scheduler.submits) == 2


async def test_an_engine_that_comes_back_with_another_model_gets_no_old_requests(make_suite: Any) -> None:
    """A request goes on with its own model only; the list of models follows what is served."""
    suite = await make_suite([_scheduler(step_s=0.003)], resume_timeout_s=1.0)
    running = asyncio.create_task(suite.client.complete(max_tokens=200, model="fake"))
    await _until(lambda: suite.scheduler.num_frames > 5)
    await suite.schedulers[0].kill()
    suite.scheduler.model_id = "other"
    await suite.schedulers[0].start()
    assert (await running).status == 503
    assert [model.id for model in suite.gateway.pool.models()] == ["other"]


async def test_several_models_need_a_name(make_suite: Any) -> None:
    """Without a name among several models the request is refused; with one it goes to its engine."""
    suite = await make_suite([_scheduler(model_id="a", max_model_len=99), _scheduler(model_id="b")])
    answer = await suite.client.complete()
    assert (answer.status, answer.json["error"]["param"]) == (400, "model")
    assert (await suite.client.complete(model="b")).json["model"] == "b"
    assert [(m.id, m.max_model_len) for m in suite.gateway.pool.models()] == [("a", 99), ("b", 1024)]
    assert [info.id for info in suite.gateway.pool.model_infos()] == ["a", "b"]


def test_a_bare_status_is_understood_by_its_code() -> None:
    """A rejection without our details still says what kind it is."""
    assert isinstance(error_of_rejection(bare_status(8, "full")), QueueFull)
    assert isinstance(error_of_rejection(bare_status(14)), Unavailable)


async def test_an_engine_with_too_small_a_vocabulary_is_refused(make_suite: Any) -> None:
    """Tokenizer and model must fit, or ids would point behind the model's rows."""
    suite = await make_suite([_scheduler(vocab_size=100)], wait=False, resume_timeout_s=0.2)
    await _until(lambda: len(suite.scheduler.hellos) >= 2)
    assert {hello.tokenizer_fingerprint for hello in suite.scheduler.hellos} == {"f" * 64}
    assert not suite.gateway.pool.is_ready
    assert not suite.gateway.server.health.ready
    answer = await suite.client.complete()
    assert answer.status == 503


async def test_native_errors_are_statuses(make_suite: Any) -> None:
    """A gRPC client of the typed API gets a status where the OpenAI dialect has a body."""
    from quire.inference.v1 import generate_pb2

    suite = await make_suite([_scheduler(reject_with=QueueFull(2))])
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        async for _ in suite.client.inference.Generate(generate_pb2.GenerateRequest(text="x")):
            raise AssertionError("no message before the refusal")
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
