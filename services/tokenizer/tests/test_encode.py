"""Encoding with limits, and where the work runs."""

from __future__ import annotations

import asyncio
import threading

import pytest

from quire_servicekit.errors import InvalidRequest, QueueFull
from quire_tokenizer.encode import TextEncoder, TextLimits
from quire_tokenizer.text_pool import PoolLimits, TextPool

LIMITS = TextLimits(max_text_chars=10, max_texts=3)


def test_text_becomes_ids(smollm2):
    """Encoding gives the library's ids, also for an empty text and for special tokens inside one."""
    encoder = TextEncoder(smollm2.backend, TextLimits())
    assert encoder.encode("Once upon a time") == smollm2.backend.encode("Once upon a time").ids
    assert encoder.encode("") == []
    assert encoder.encode("<|im_end|>") == [2]


def test_special_tokens_around_a_text_can_be_left_out(sentencepiece):
    """The model's BOS is added unless that is not wanted."""
    encoder = TextEncoder(sentencepiece.backend, TextLimits())
    assert encoder.encode("ab") == [1, *encoder.encode("ab", add_special_tokens=False)]


@pytest.mark.parametrize(
    ("texts", "field", "message"),
    [
        ([], "texts", "1 to 3 texts, got 0"),
        (["a"] * 4, "texts", "1 to 3 texts, got 4"),
        (["ok", "x" * 11], "texts[1]", "at most 10 characters, got 11"),
    ],
)
def test_limits_name_field_limit_and_value(smollm2, texts, field, message):
    """What is too much is refused before any work, with the numbers."""
    with pytest.raises(InvalidRequest, match=message) as caught:
        TextEncoder(smollm2.backend, LIMITS).check(texts)
    assert caught.value.field == field


def test_limits_count_characters_not_bytes(smollm2):
    """Ten emoji are ten characters."""
    assert TextEncoder(smollm2.backend, LIMITS).check(["\U0001f600" * 10]) == 10


async def test_short_text_runs_at_once_and_long_on_a_thread():
    """The limit decides; both give the result."""
    pool = TextPool(PoolLimits(num_threads=1, max_inline_chars=4))
    assert await pool.run(4, threading.current_thread) is threading.current_thread()
    assert await pool.run(5, threading.current_thread) is not threading.current_thread()
    pool.close()


async def test_pool_refuses_what_it_cannot_hold():
    """Beyond the bound of waiting characters a call fails with a retry delay, and room comes back afterwards."""
    pool = TextPool(PoolLimits(num_threads=1, max_inline_chars=0, max_waiting_chars=10))
    release = threading.Event()
    running = asyncio.ensure_future(pool.run(8, release.wait))
    await asyncio.sleep(0)
    with pytest.raises(QueueFull) as caught:
        await pool.run(3, lambda: None)
    assert caught.value.retry_delay_s > 0
    release.set()
    assert await running
    assert await pool.run(3, lambda: "done") == "done"
    pool.close()


async def test_one_text_larger_than_the_queue_still_runs():
    """A text that the limits allow is never refused for ever: an empty pool takes it."""
    pool = TextPool(PoolLimits(num_threads=1, max_inline_chars=0, max_waiting_chars=10))
    assert await pool.run(100, lambda: "done") == "done"
    pool.close()


async def test_cancelled_work_is_dropped_and_gives_its_room_back():
    """A caller that went away before a thread was free costs no work."""
    pool = TextPool(PoolLimits(num_threads=1, max_inline_chars=0, max_waiting_chars=10))
    release, started = threading.Event(), threading.Event()
    running = asyncio.ensure_future(pool.run(1, release.wait))
    waiting = asyncio.ensure_future(pool.run(9, started.set))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    next_one = asyncio.ensure_future(pool.run(9, lambda: "done"))
    await asyncio.sleep(0)
    release.set()
    await running
    assert await next_one == "done"
    assert not started.is_set()
    pool.close()


async def test_failure_of_the_work_reaches_the_caller():
    """An error on a thread is the caller's error."""

    def refuse() -> None:
        raise InvalidRequest("texts", "short", "long")

    pool = TextPool(PoolLimits(max_inline_chars=0))
    with pytest.raises(InvalidRequest):
        await pool.run(1, refuse)
    pool.close()


async def test_long_text_does_not_stop_the_event_loop(smollm2):
    """While a long text is encoded the loop goes on turning, so streams of other requests are not delayed."""
    pool = TextPool(PoolLimits())
    encoder = TextEncoder(smollm2.backend, TextLimits())
    text = "The quick brown fox jumps over 12 lazy dogs. " * 6000
    work = asyncio.ensure_future(pool.run(len(text), lambda: encoder.encode(text)))
    turns = 0
    while not work.done():
        await asyncio.sleep(0.001)
        turns += 1
    # An encoder that keeps the interpreter lock would allow one or two.
    assert turns > 10
    assert len(work.result()) > 60_000
    pool.close()
