"""Faults that users of such systems reported, as far as a gateway can have them: each a test of what is right."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
from gateway_fakes import EOS, FakeScheduler

from quire.inference.v1 import generate_pb2
from quire.sampling.v1 import sampling_pb2
from quire_gateway.openai.chat_request import ChatRequest
from quire_gateway.openai.completion_request import CompletionRequest
from quire_gateway.openai.parameters import NEUTRAL, UNSUPPORTED


def _speaks(text: str | bytes, **options: Any) -> FakeScheduler:
    data = text.encode() if isinstance(text, str) else text
    return FakeScheduler(text_of=lambda submit, index: data, **options)


async def _generate(suite: Any, **fields: Any) -> list[Any]:
    call = suite.client.inference.Generate(generate_pb2.GenerateRequest(**fields), timeout=15)
    return [event async for event in call]


@pytest.mark.parametrize("tokens_per_step", [1, 3, 50])
async def test_no_part_of_a_stop_text_is_streamed(make_suite: Any, tokens_per_step: int) -> None:
    """However many tokens a piece brings, what may begin a stop text is held back until it is none."""
    suite = await make_suite([_speaks("one ST two STOP three", tokens_per_step=tokens_per_step)])
    answer = await suite.client.complete("x", stop="STOP", stream=True, max_tokens=50)
    assert answer.text() == "one ST two "
    sent = ""
    for chunk in answer.chunks:
        sent += chunk["choices"][0]["text"]
        assert "one ST two ".startswith(sent) and "STO" not in sent


async def test_no_empty_chunks_while_text_is_held_back(make_suite: Any) -> None:
    """Tokens that only extend a possible stop text bring no chunk at all."""
    suite = await make_suite([_speaks("aSTOq")])
    answer = await suite.client.complete("x", stop="STOP", stream=True)
    texts = [chunk["choices"][0]["text"] for chunk in answer.chunks[:-1]]
    assert texts == ["a", "STOq"]


async def test_the_token_api_enforces_stop_texts_or_refuses_them(make_suite: Any) -> None:
    """With text the stop is found and the engine ends; without text it is INVALID_ARGUMENT, never ignored."""
    suite = await make_suite([_speaks("one STOP " + "x" * 400, step_s=0.001)])
    token_ids = generate_pb2.TokenIds(ids=[1])
    events = await _generate(suite, token_ids=token_ids, stop=["STOP"])
    assert "".join(event.delta.text for event in events) == "one "
    assert events[-2].sequence_finished.stop_text == "STOP"
    async with asyncio.timeout(5):
        while not suite.scheduler.aborts:
            await asyncio.sleep(0.002)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await _generate(suite, token_ids=token_ids, stop=["STOP"], detokenize=False)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_stop_text_may_lie_across_tokens(make_suite: Any) -> None:
    """Each byte is a token here: the stop begins and ends inside what a tokenizer would cut otherwise."""
    suite = await make_suite([_speaks("abc\u00e9def")])
    answer = await suite.client.complete("x", stop="c\u00e9d")
    choice = answer.json["choices"][0]
    assert (choice["text"], choice["stop_reason"]) == ("ab", "c\u00e9d")


async def test_a_stop_id_is_cut_from_the_text_only_if_it_is_special(make_suite: Any) -> None:
    """An ordinary token that stops stays in the text, as its token does; a special one is not text."""
    suite = await make_suite([_speaks("ab.cd")])
    choice = (await suite.client.complete("x", stop_token_ids=[ord(".")])).json["choices"][0]
    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == ("ab.", "stop", ord("."))
    choice = (await suite.client.complete("x", stop_token_ids=[EOS], ignore_eos=True)).json["choices"][0]
    assert (choice["text"], choice["stop_reason"]) == ("ab.cd", EOS)


@pytest.mark.parametrize("is_text_bytes", [False, True])
async def test_no_replacement_characters_in_emoji_streams(make_suite: Any, is_text_bytes: bool) -> None:
    """Characters that lie across tokens come whole, whoever joins the text; only what is no UTF-8 is replaced."""
    from gateway_fakes import FakeTokenizer

    text = "\U0001f469\u200d\U0001f469\u200d\U0001f467 \u4e16\u754c e\u0301"
    suite = await make_suite(
        [_speaks(text.encode() + b"\xf0\x9f", tokens_per_step=1)],
        [FakeTokenizer(is_text_bytes=is_text_bytes)],
    )
    answer = await suite.client.complete("x", stream=True, max_tokens=60)
    assert answer.text() == text + "\ufffd"
    pieces = [chunk["choices"][0]["text"] for chunk in answer.chunks]
    assert all("\ufffd" not in piece for piece in pieces[:-2])


@pytest.mark.parametrize(
    ("options", "reason"), [({}, "stop"), ({"max_tokens": 2}, "length"), ({"stop": "l"}, "stop")]
)
async def test_every_stream_ends_with_a_reason_and_done(
    suite: Any, options: dict[str, Any], reason: str
) -> None:
    """Whatever ends a choice, its last chunk says why, once, and [DONE] closes the stream."""
    for post in (suite.client.chat, suite.client.complete):
        answer = await post("x", stream=True, n=2, **options)
        assert answer.events[-1] == "[DONE]"
        reasons = [c["finish_reason"] for chunk in answer.chunks for c in chunk["choices"]]
        assert [found for found in reasons if found] == [reason] * 2


@pytest.mark.parametrize("stream", [False, True])
async def test_an_engine_error_is_no_normal_finish(make_suite: Any, stream: bool) -> None:
    """An engine that fails on a request gives an error, as a status or as an event; never a finish_reason."""
    suite = await make_suite([FakeScheduler(end_with=sampling_pb2.FINISH_REASON_ERROR)])
    answer = await suite.client.complete("x", stream=stream)
    last = answer.events[-1] if stream else answer.json
    assert last["error"]["type"] == "server_error"
    assert stream or answer.status == 500
    assert b'"finish_reason":"' not in answer.body


async def test_ignore_eos_ignores_every_eos_id_but_no_stop_id(make_suite: Any) -> None:
    """All ids of the model's generation_config go along, so that the engine knows what to ignore; stop ids stay."""
    suite = await make_suite([_speaks("ab")])
    answer = await suite.client.complete("x", ignore_eos=True, max_tokens=7)
    assert answer.json["choices"][0]["finish_reason"] == "length"
    assert answer.json["usage"]["completion_tokens"] == 7
    stopped = await suite.client.complete("x", ignore_eos=True, stop_token_ids=[ord("b")], max_tokens=7)
    assert stopped.json["choices"][0]["stop_reason"] == ord("b")
    submit = suite.scheduler.submits[-1]
    assert (submit.sampling.ignore_eos, list(submit.eos_token_ids)) == (True, [EOS])
    assert list(submit.sampling.stop_token_ids) == [ord("b")]


async def test_min_tokens_reach_the_engine_with_all_that_could_end(suite: Any) -> None:
    """The engine masks end-of-sequence and stop ids up to min_tokens: it is told all three, zero included."""
    await suite.client.complete("x", min_tokens=5, stop_token_ids=[7])
    submit = suite.scheduler.submits[-1]
    assert (submit.sampling.min_tokens, list(submit.sampling.stop_token_ids)) == (5, [7])
    assert list(submit.eos_token_ids) == [EOS]
    await suite.client.complete("x", min_tokens=0)
    assert suite.scheduler.submits[-1].sampling.HasField("min_tokens")
    refused = await suite.client.complete("x", min_tokens=9, max_tokens=3)
    assert refused.json["error"]["param"] == "min_tokens"


@pytest.mark.parametrize("method", ["ChatCompletions", "Completions"])
async def test_an_unsupported_parameter_is_refused_not_ignored(suite: Any, method: str) -> None:
    """Each known name that an endpoint does not serve is 400 with that name, and so is one nobody knows."""
    served = (ChatRequest if method == "ChatCompletions" else CompletionRequest).model_fields
    base = {"prompt": "x"} if method == "Completions" else {"messages": [{"role": "user", "content": "x"}]}
    for name in sorted({*UNSUPPORTED, *NEUTRAL} - set(served)):
        answer = await suite.client.post(method, {**base, name: {"some": "value"}})
        assert (answer.status, answer.json["error"]["param"]) == (400, name)
        assert answer.json["error"]["code"] == "unsupported_parameter"
    answer = await suite.client.post(method, {**base, "no_such_thing": 1})
    assert answer.json["error"] == {
        "message": "Unrecognized request argument: no_such_thing",
        "type": "invalid_request_error",
        "param": "no_such_thing",
        "code": "unknown_parameter",
    }
    assert suite.scheduler.submits == []


async def test_zero_is_not_unset_on_any_way_in(make_suite: Any) -> None:
    """Every parameter keeps its presence from the client to the engine: zero is sent as zero, unset as the default."""
    defaults = sampling_pb2.SamplingParams(temperature=0.7, top_k=5, min_p=0.5, repetition_penalty=1.5)
    suite = await make_suite([FakeScheduler(default_sampling=defaults)])
    zeros: dict[str, Any] = {
        "temperature": 0, "top_k": 0, "min_p": 0, "presence_penalty": 0, "frequency_penalty": 0, "seed": 0,
        "min_tokens": 0, "ignore_eos": False,
    }  # fmt: skip
    await suite.client.complete("x", **zeros)
    await suite.client.chat("x", **zeros)
    await _generate(suite, text="x", sampling=sampling_pb2.SamplingParams(**zeros))
    for submit in suite.scheduler.submits:
        for name, value in zeros.items():
            assert submit.sampling.HasField(name) and getattr(submit.sampling, name) == value, name
        assert submit.sampling.repetition_penalty == 1.5
