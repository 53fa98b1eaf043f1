"""What the gateway does when tokenizers break, restart or are slow, and when readers are."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from gateway_fakes import FakeScheduler, FakeServer, FakeTokenizer

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


@pytest.mark.parametrize("break_after", [1, 2, 9])
async def test_a_broken_detokenise_stream_is_rebuilt(make_suite: Any, break_after: int) -> None:
    """Texts go on where they were, also inside a character."""
    text = "Füße 世界 👋🏽 " * 5
    tokenizer = FakeTokenizer()
    scheduler = FakeScheduler(text_of=lambda submit, index: text.encode(), step_s=0.002)
    suite = await make_suite([scheduler], [tokenizer])
    tokenizer.break_after = break_after
    answers = await asyncio.gather(*(suite.client.complete(max_tokens=200, stream=True) for _ in range(3)))
    assert [answer.text() for answer in answers] == [text] * 3
    assert tokenizer.break_after is None


async def test_a_bug_in_a_writer_costs_the_call_not_the_texts(make_suite: Any, monkeypatch: Any) -> None:
    """A writer that fails cannot leave its reader waiting: the call is made anew and nothing is missing."""
    suite = await make_suite([_scheduler(step_s=0.002)])
    detokenizer, failures = suite.gateway.detokenizer, []
    make_batch = type(detokenizer)._next_batch

    def fail_once(self: Any) -> Any:
        if suite.tokenizer.num_batches == 5 and not failures:
            failures.append(True)
            raise TypeError("a column of the wrong type")
        return make_batch(self)

    monkeypatch.setattr(type(detokenizer), "_next_batch", fail_once)
    answer = await suite.client.complete(max_tokens=60, stream=True)
    assert answer.text() == (b"0: " + _LONG)[:60].decode()
    assert failures


async def test_batches_on_their_way_and_waiting_ones_are_both_sent_again(make_suite: Any) -> None:
    """A call that breaks with unanswered batches and more tokens behind them loses neither."""
    tokenizer = FakeTokenizer()
    tokenizer.delay_s = 0.02
    suite = await make_suite([_scheduler(step_s=0.001)], [tokenizer])
    tokenizer.break_after = 3
    answer = await suite.client.complete(max_tokens=120, stream=True)
    assert answer.text() == (b"0: " + _LONG)[:120].decode()
    assert tokenizer.break_after is None


async def test_a_killed_tokenizer_hands_over_to_another(make_suite: Any) -> None:
    """Streams and new requests go on with the tokenizer that lives."""
    suite = await make_suite([_scheduler(step_s=0.003)], [FakeTokenizer(), FakeTokenizer()])
    running = [asyncio.create_task(suite.client.complete(max_tokens=150, stream=True)) for _ in range(3)]
    await _until(lambda: suite.scheduler.num_frames > 5)
    busy = max(suite.tokenizers, key=lambda server: server.servicer.num_batches)
    await busy.kill()
    new = await asyncio.gather(*(suite.client.complete(max_tokens=5) for _ in range(4)))
    assert {answer.status for answer in new} == {200}
    assert {answer.text() for answer in await asyncio.gather(*running)} == {(b"0: " + _LONG)[:150].decode()}


async def test_a_tokenizer_that_restarts_is_waited_for(make_suite: Any) -> None:
    """With a single tokenizer requests wait, up to the timeout; then they are 503."""
    suite = await make_suite(resume_timeout_s=1.0)
    await suite.tokenizers[0].kill()
    assert (await suite.client.complete()).status == 503
    waiting = asyncio.create_task(suite.client.complete())
    await asyncio.sleep(0.05)
    await suite.tokenizers[0].start()
    assert (await waiting).status == 200


async def test_streams_fail_when_no_tokenizer_comes_back(make_suite: Any) -> None:
    """A stream whose text cannot be had ends with an error, and its engine stops."""
    tokenizer = FakeTokenizer()
    suite = await make_suite([_scheduler(step_s=0.003)], [tokenizer], resume_timeout_s=0.2)
    running = asyncio.create_task(suite.client.complete(max_tokens=200, stream=True))
    await _until(lambda: tokenizer.num_batches > 5)
    await suite.tokenizers[0].kill()
    events = (await running).events
    assert events[-1]["error"]["code"] == "unavailable"
    await _until(lambda: not suite.scheduler.running)


async def test_a_tokenizer_of_another_kind_is_never_used(make_suite: Any) -> None:
    """The first fingerprint counts; a replica with another one gets no work."""
    suite = await make_suite()
    await suite.tokenizers[0].kill()
    other = await FakeServer(FakeTokenizer(fingerprint="0" * 64), suite.tokenizers[0].port).start()
    call = suite.client.start("Completions", {"prompt": "x"})
    await _until(lambda: other.servicer.num_described >= 2)
    assert not suite.gateway.tokenizer.is_ready
    call.cancel()
    await other.kill()


async def test_a_slow_tokenizer_gets_larger_batches_not_more(make_suite: Any) -> None:
    """At most two batches are under way; what comes meanwhile is merged, and the text is whole."""
    tokenizer = FakeTokenizer()
    tokenizer.delay_s = 0.05
    suite = await make_suite([_scheduler(step_s=0.001)], [tokenizer])
    answer = await suite.client.complete(max_tokens=150, stream=True)
    assert answer.text() == (b"0: " + _LONG)[:150].decode()
    assert tokenizer.num_batches < 40


async def test_a_slow_reader_merges_and_delays_nobody(make_suite: Any) -> None:
    """A client that reads nothing gets its text in few pieces later; others are done meanwhile."""
    suite = await make_suite([_scheduler(step_s=0.001)])
    slow = suite.client.start("Completions", {"prompt": "x", "max_tokens": 250, "stream": True})
    quick = await suite.client.complete(max_tokens=100, stream=True)
    assert quick.text() == (b"0: " + _LONG)[:100].decode()
    text = b"".join([message.data async for message in slow])
    assert text.endswith(b"data: [DONE]\n\n")
    await _until(lambda: _idle(suite))
