"""Text that the gateway joins itself: what it says, whose request fails, and that no tokenizer is needed for it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from gateway_fakes import EOS, VOCABULARY, FakeScheduler, FakeTokenizer

from quire_gateway.byte_detokenizer import ByteDetokenizer, ByteTable, ByteText
from quire_gateway.detokenizer import RemoteDetokenizer
from quire_gateway.detokenizing import joins_bytes
from quire_servicekit.errors import FailedPrecondition

_LONG = b"The quick brown fox jumps over the lazy dog. " * 6


def _scheduler(**options: Any) -> FakeScheduler:
    return FakeScheduler(text_of=lambda submit, index: b"%d: " % index + _LONG, **options)


async def _until(condition: Any, timeout_s: float = 5) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.002)


def _idle(suite: Any) -> bool:
    return (
        suite.gateway.admission.num_in_flight == 0
        and suite.gateway.pool.num_requests == 0
        and suite.gateway.detokenizer.num_streams == 0
        and all(not server.servicer.running for server in suite.schedulers)
        and all(c.num_dispatched == 0 for c in suite.gateway.pool._connections.values())
    )


# ---- The text ------------------------------------------------------------------------------------------------------


def test_an_unfinished_character_is_held_back_and_shown_at_the_end() -> None:
    """Bytes that may become a character wait for it; at the end they are one U+FFFD."""
    text = ByteText(ByteTable(VOCABULARY))
    assert [text.push([byte]) for byte in "ü".encode() + "世".encode()[:2]] == ["", "ü", "", ""]
    assert text.flush() == "\ufffd"


def test_special_tokens_are_left_out_or_literal() -> None:
    """Left-out tokens have no text, also inside a character, and others have their literal one."""
    ids = [0xC3, EOS, 0xBC]
    assert ByteText(ByteTable(VOCABULARY, [EOS])).push(ids) == "ü"
    assert ByteText(ByteTable(VOCABULARY)).push(ids) == "\ufffd<eos>\ufffd"


def test_leading_spaces_are_stripped_once() -> None:
    """As many spaces as the vocabulary says, however they come, and none behind the first other character."""
    for parts in ([list(b"   a a")], [[byte] for byte in b"   a a"], [[], list(b" "), [], list(b"  a a")]):
        text = ByteText(ByteTable(VOCABULARY), num_leading_spaces_stripped=2)
        assert "".join(text.push(part) for part in parts) == " a a"
    assert ByteText(ByteTable(VOCABULARY), num_leading_spaces_stripped=2).push(list(b" a  b")) == "a  b"


@pytest.mark.parametrize("ids", [[len(VOCABULARY)], [65, len(VOCABULARY)]])
def test_an_unknown_token_adds_nothing(ids: list[int]) -> None:
    """An id outside the vocabulary is an error, and the text is as before."""
    text = ByteText(ByteTable(VOCABULARY))
    assert text.push([0xC3]) == ""
    with pytest.raises(IndexError):
        text.push(ids)
    assert text.push([0xBC]) == "ü"


# ---- Who joins -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("is_text_bytes", "mode", "kind"),
    [
        (True, "auto", ByteDetokenizer),
        (True, "gateway", ByteDetokenizer),
        (True, "tokenizer", RemoteDetokenizer),
        (False, "auto", RemoteDetokenizer),
        (False, "tokenizer", RemoteDetokenizer),
    ],
)
async def test_the_setting_and_the_scheme_choose(
    make_suite: Any, is_text_bytes: bool, mode: str, kind: type[Any]
) -> None:
    """The gateway joins where it can and may; otherwise the tokenizer does. The text is the same."""
    text = "Füße 世界 👋🏽 "
    tokenizer = FakeTokenizer(is_text_bytes=is_text_bytes)
    scheduler = FakeScheduler(text_of=lambda submit, index: text.encode())
    suite = await make_suite([scheduler], [tokenizer], detokenize=mode)
    assert (await suite.client.complete(max_tokens=100, stream=True)).text() == text
    assert isinstance(suite.gateway.detokenizer, kind)
    assert (tokenizer.num_batches == 0) == (kind is ByteDetokenizer)


async def test_a_gateway_that_shall_join_and_cannot_is_not_ready(make_suite: Any) -> None:
    """detokenize: gateway with a vocabulary that is not bytes connects to no engine."""
    with pytest.raises(FailedPrecondition, match="detokenize"):
        joins_bytes("gateway", is_text_bytes=False)
    suite = await make_suite(detokenize="gateway", wait=False)
    await _until(lambda: suite.gateway.tokenizer.is_ready)
    await asyncio.sleep(0.05)
    assert not suite.gateway.pool.is_ready and not suite.scheduler.hellos


# ---- Requests ------------------------------------------------------------------------------------------------------


async def test_a_killed_tokenizer_pauses_no_stream(make_suite: Any) -> None:
    """Streams end whole while the only tokenizer stays dead, and so does a new request that is tokens already."""
    suite = await make_suite([_scheduler(step_s=0.003)], [FakeTokenizer(is_text_bytes=True)])
    running = [asyncio.create_task(suite.client.complete(max_tokens=150, stream=True)) for _ in range(3)]
    await _until(lambda: suite.scheduler.num_frames > 5)
    await suite.tokenizers[0].kill()
    answers = await asyncio.gather(*running, suite.client.complete([65, 66], max_tokens=150, stream=True))
    assert {answer.text() for answer in answers} == {(b"0: " + _LONG)[:150].decode()}
    await _until(lambda: _idle(suite))


async def test_a_dead_tokenizer_is_noticed_without_a_call(make_suite: Any) -> None:
    """The gateway stops saying that it serves when its only tokenizer dies, and says so again when it is back."""
    suite = await make_suite(tokenizers=[FakeTokenizer(is_text_bytes=True)], unready_after_s=0.05)
    for _ in range(2):
        await suite.tokenizers[0].kill()
        await _until(lambda: not suite.gateway.server.health.ready)
        await suite.tokenizers[0].start()
        await _until(lambda: suite.gateway.server.health.ready)


async def test_a_lost_engine_repeats_and_loses_no_text(make_suite: Any) -> None:
    """A stream that moves to another engine goes on inside the character where it was."""
    text = "Füße 世界 👋🏽 " * 5
    scheduler = FakeScheduler(text_of=lambda submit, index: text.encode(), step_s=0.002)
    suite = await make_suite([scheduler], [FakeTokenizer(is_text_bytes=True)])
    for break_after in (10, 20):
        scheduler.break_after = scheduler.num_frames + break_after
        assert (await suite.client.complete(max_tokens=200, stream=True)).text() == text
        assert scheduler.break_after is None


@pytest.mark.parametrize("tokens_per_step", [1, 7])
async def test_stop_texts_end_the_request_at_once(make_suite: Any, tokens_per_step: int) -> None:
    """A stop text ends the sequence inside a frame; the engine is told, and counts don't depend on the steps."""
    scheduler = _scheduler(tokens_per_step=tokens_per_step)
    suite = await make_suite([scheduler], [FakeTokenizer(is_text_bytes=True)])
    answer = await suite.client.complete(max_tokens=200, stop=["brown"], logprobs=1)
    assert answer.json["choices"][0]["text"] == "0: The quick "
    assert answer.json["usage"]["completion_tokens"] == len("0: The quick brown")
    await _until(lambda: scheduler.aborts and _idle(suite))


async def test_a_stop_text_in_the_engines_last_words_counts(make_suite: Any) -> None:
    """A request that its stop text ended is not submitted again when the same news says that the engine aborted it."""
    from quire.sampling.v1 import sampling_pb2

    scheduler = _scheduler(end_with=sampling_pb2.FINISH_REASON_ABORT)
    suite = await make_suite([scheduler], [FakeTokenizer(is_text_bytes=True)])
    answer = await suite.client.complete(max_tokens=200, stop=["0: "])
    assert answer.json["choices"][0]["finish_reason"] == "stop"
    await _until(lambda: _idle(suite))
    assert len(scheduler.submits) == 1


async def test_an_unknown_token_fails_its_request_only(make_suite: Any) -> None:
    """A token id outside the vocabulary is a 500 for its request; others beside it go on."""

    class Odd(FakeScheduler):
        def _advance(self, sequence: Any) -> tuple[list[int], int]:
            tokens, reason = super()._advance(sequence)
            is_odd = sequence.submit.prompt_token_ids[0] == 90 and len(sequence.output) > 3
            return ([9999] if is_odd else tokens), reason

    scheduler = Odd(text_of=lambda submit, index: _LONG)
    suite = await make_suite([scheduler], [FakeTokenizer(is_text_bytes=True)])
    odd, good = await asyncio.gather(
        suite.client.complete([90], max_tokens=60), suite.client.complete([65], max_tokens=60)
    )
    assert odd.status == 500 and odd.json["error"]["message"]
    assert good.json["choices"][0]["text"] == _LONG[:60].decode()
    await _until(lambda: _idle(suite))
