"""Sampling parameters and extras through both APIs: what the engine gets, and what comes back."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
from gateway_fakes import BOS, EOS, FakeScheduler

from quire.inference.v1 import chat_pb2, generate_pb2
from quire.sampling.v1 import sampling_pb2
from quire_gateway.settings import GatewaySettings


async def _generate(suite: Any, **fields: Any) -> list[Any]:
    call = suite.client.inference.Generate(generate_pb2.GenerateRequest(**fields), timeout=15)
    return [event async for event in call]


def _last_sampling(suite: Any) -> sampling_pb2.SamplingParams:
    sampling: sampling_pb2.SamplingParams = suite.scheduler.submits[-1].sampling
    return sampling


# ---- What comes back of prompts ------------------------------------------------------------------------------------


async def test_prompt_tokens_and_text_come_back(suite: Any) -> None:
    """Whole or streamed: of each choice in completions, of the answer in chat; in the stream's first chunk."""
    wishes = {"return_token_ids": True, "return_prompt_text": True, "max_tokens": 2}
    whole = (await suite.client.complete("ab", **wishes)).json["choices"][0]
    assert (whole["prompt_token_ids"], whole["prompt_text"]) == ([BOS, 97, 98], "ab")
    assert whole["token_ids"] == [72, 101]
    chunks = (await suite.client.complete("ab", stream=True, **wishes)).chunks
    assert chunks[0]["choices"][0]["prompt_token_ids"] == [BOS, 97, 98]
    assert [i for c in chunks for i in c["choices"][0].get("token_ids", [])] == [72, 101]
    chat = (await suite.client.chat("hi", **wishes)).json
    assert (chat["prompt_text"], chat["prompt_token_ids"]) == ("user: hi\n", list(b"user: hi\n"))
    first = (await suite.client.chat("hi", stream=True, **wishes)).chunks[0]
    assert (first["prompt_text"], first["choices"][0]["delta"]["role"]) == ("user: hi\n", "assistant")


async def test_typed_prompt_tokens_and_text(suite: Any) -> None:
    """`started` has them where they were asked for, and nothing otherwise."""
    events = await _generate(suite, text="ab", return_prompt_token_ids=True, return_prompt_text=True)
    assert (list(events[0].started.prompt_token_ids), events[0].started.prompt_text) == ([BOS, 97, 98], "ab")
    plain = (await _generate(suite, text="ab"))[0].started
    assert (list(plain.prompt_token_ids), plain.prompt_text) == ([], "")


# ---- Prompts -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({"truncate_prompt_tokens": 3}, b"fgh"),
        ({"truncate_prompt_tokens": 3, "truncation_side": "right"}, b"abc"),
        ({"truncate_prompt_tokens": 100}, b"abcdefgh"),
        ({"truncate_prompt_tokens": -1, "max_tokens": 27}, b"defgh"),
        ({"truncate_prompt_tokens": -1}, b"abcdefgh"),
    ],
)
async def test_truncated_prompts(make_suite: Any, options: dict[str, Any], kept: bytes) -> None:
    """The named number of tokens is left, at the named end; -1 leaves what fits beside the output."""
    suite = await make_suite([FakeScheduler(max_model_len=32)])
    answer = await suite.client.complete("abcdefgh", add_special_tokens=False, echo=True, **options)
    assert list(suite.scheduler.submits[-1].prompt_token_ids) == list(kept)
    assert answer.json["choices"][0]["text"].startswith(kept.decode())


async def test_typed_truncation_and_special_tokens(suite: Any) -> None:
    """The typed API has the same: unset max_tokens is as many as fit."""
    cut = generate_pb2.Truncation(max_tokens=2, side=generate_pb2.TRUNCATION_SIDE_RIGHT)
    await _generate(suite, text="abc", truncation=cut)
    assert list(suite.scheduler.submits[-1].prompt_token_ids) == [BOS, 97]
    await _generate(suite, text="abc", add_special_tokens=False, truncation=generate_pb2.Truncation())
    assert list(suite.scheduler.submits[-1].prompt_token_ids) == [97, 98, 99]


async def test_bad_words_become_token_sequences(suite: Any) -> None:
    """Each word as a text begins and behind a space, beside sequences that a typed client gave itself."""
    await suite.client.complete("x", bad_words=["no", " way"])
    sent = [list(bad.token_ids) for bad in _last_sampling(suite).bad_token_sequences]
    assert sent == [list(b"no"), list(b" no"), list(b"way"), list(b" way")]
    own = [sampling_pb2.TokenSequence(token_ids=[7, 8])]
    sampling = sampling_pb2.SamplingParams(bad_token_sequences=own)
    await _generate(suite, text="x", bad_words=["no"], sampling=sampling)
    assert [list(bad.token_ids) for bad in _last_sampling(suite).bad_token_sequences] == [
        [7, 8],
        list(b"no"),
        list(b" no"),
    ]


async def test_templates_and_documents(make_suite: Any) -> None:
    """A request's template needs the operator's trust; documents are a variable of whichever template it is."""
    suite = await make_suite()
    refused = await suite.client.chat("hi", chat_template="{{ messages }}")
    assert (refused.status, refused.json["error"]["param"]) == (400, "chat_template")
    await suite.client.chat("hi", documents=[{"text": "d"}], chat_template_kwargs={"x": 1})
    _, request = suite.tokenizer.rendered[-1]
    assert request.template_kwargs_json == '{"x": 1, "documents": [{"text": "d"}]}'
    trusting = await make_suite(trust_request_chat_template=True)
    assert (await trusting.client.chat("hi", chat_template="T")).status == 200
    assert trusting.tokenizer.rendered[-1][1].chat_template == "T"
    messages = [chat_pb2.ChatMessage(role="user", content="hi")]
    chat = chat_pb2.Chat(messages=messages, chat_template="U", documents_json=['{"b": 1, "a": 2}'])
    await _generate(trusting, chat=chat)
    _, request = trusting.tokenizer.rendered[-1]
    assert (request.chat_template, request.template_kwargs_json) == ("U", '{"documents": [{"b": 1, "a": 2}]}')


async def test_a_session_prefers_one_engine(make_suite: Any) -> None:
    """Requests of one session go to one engine whatever they begin with; several sessions use several engines."""
    suite = await make_suite([FakeScheduler(), FakeScheduler()])

    async def engine_of(session_id: str, prompt: str) -> int:
        before = [len(server.servicer.submits) for server in suite.schedulers]
        await suite.client.complete(prompt, session_id=session_id, max_tokens=1)
        after = [len(server.servicer.submits) for server in suite.schedulers]
        return next(i for i in range(2) if after[i] > before[i])

    for session_id in ("a", "b", "c"):
        assert len({await engine_of(session_id, str(k) * 40) for k in range(3)}) == 1
    assert len({await engine_of(f"s{k}", "same") for k in range(12)}) == 2


async def test_skipping_the_prefix_cache_reaches_the_engine(suite: Any) -> None:
    """The wish crosses to the scheduler, from both APIs; unset it is false."""
    await suite.client.complete("x", skip_reading_prefix_cache=True)
    assert suite.scheduler.submits[-1].skip_reading_prefix_cache
    await _generate(suite, text="x", skip_reading_prefix_cache=True)
    assert suite.scheduler.submits[-1].skip_reading_prefix_cache
    await suite.client.complete("x")
    assert not suite.scheduler.submits[-1].skip_reading_prefix_cache


async def test_stream_interval_makes_larger_pieces(make_suite: Any) -> None:
    """The first token comes at once, then so many at a time, then the rest; the text is the same."""
    suite = await make_suite([FakeScheduler(text_of=lambda s, i: b"abcdefghijk", step_s=0.005)])
    answer = await suite.client.complete("x", stream=True, stream_interval=4)
    pieces = [c["choices"][0]["text"] for c in answer.chunks if c["choices"][0]["text"]]
    assert answer.text() == "abcdefghijk"
    assert pieces[0] == "a" and all(len(piece) >= 4 for piece in pieces[1:-1]) and len(pieces) <= 4
    events = await _generate(suite, text="x", stream_interval=4)
    sizes = [len(event.delta.token_ids) for event in events if event.HasField("delta")]
    assert sizes[0] == 1 and sum(sizes) == 12 and len(sizes) <= 4


# ---- Defaults ------------------------------------------------------------------------------------------------------


async def test_defaults_come_from_request_operator_model_in_this_order(make_suite: Any) -> None:
    """Over REST and gRPC alike; what nobody says stays unset and has the contract's default."""
    defaults = sampling_pb2.SamplingParams(temperature=0.6, top_p=0.9, top_k=20)
    suite = await make_suite(
        [FakeScheduler(default_sampling=defaults)], default_sampling="top_p=0.5,min_p=0.25"
    )

    async def ask(**own: Any) -> list[sampling_pb2.SamplingParams]:
        await suite.client.complete("x", **own)
        rest = _last_sampling(suite)
        await _generate(suite, text="x", sampling=sampling_pb2.SamplingParams(**own))
        return [rest, _last_sampling(suite)]

    for sampling in await ask():
        assert sampling.temperature == pytest.approx(0.6)
        assert (sampling.top_p, sampling.top_k, sampling.min_p) == (0.5, 20, 0.25)
        assert not sampling.HasField("presence_penalty")
    for sampling in await ask(temperature=0.0, top_p=1.0, top_k=0, min_p=0.0):
        assert sampling.HasField("temperature") and sampling.HasField("top_k")
        assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0, 1, 0, 0)


async def test_the_models_defaults_can_be_left_out(make_suite: Any) -> None:
    """generation_config: none leaves the contract's defaults and the operator's own."""
    defaults = sampling_pb2.SamplingParams(temperature=0.6, top_k=20)
    suite = await make_suite(
        [FakeScheduler(default_sampling=defaults)], generation_config="none", default_sampling="top_k=7"
    )
    await suite.client.complete("x")
    assert not _last_sampling(suite).HasField("temperature") and _last_sampling(suite).top_k == 7


@pytest.mark.parametrize("pairs", ["temperature", "temperature=hot", "heat=1", "top_p=3"])
def test_bad_defaults_stop_the_start(pairs: str) -> None:
    """A default that is no number, unknown or out of range is a settings error, not a surprise at a request."""
    with pytest.raises(ValueError, match=r"default_sampling|top_p"):
        GatewaySettings(default_sampling=pairs)


async def test_a_tiny_temperature_is_taken_as_a_hundredth(suite: Any) -> None:
    """What lies between 0 and 0.01 would break the softmax; 0 itself stays greedy."""
    for temperature, expected in ((1e-9, 0.01), (0.01, 0.01), (0.0, 0.0), (0.02, 0.02)):
        await suite.client.complete("x", temperature=temperature)
        assert _last_sampling(suite).temperature == pytest.approx(expected)
        sampling = sampling_pb2.SamplingParams(temperature=temperature)
        await _generate(suite, text="x", sampling=sampling)
        assert _last_sampling(suite).temperature == pytest.approx(expected)


async def test_top_k_of_minus_one_is_off(suite: Any) -> None:
    """-1 and 0 both mean off over REST."""
    for value in (-1, 0):
        await suite.client.complete("x", top_k=value)
        assert _last_sampling(suite).HasField("top_k") and _last_sampling(suite).top_k == 0
    assert (await suite.client.complete("x", top_k=-2)).json["error"]["param"] == "top_k"


async def test_stop_texts_need_text(suite: Any) -> None:
    """detokenize false with a stop text is refused: nobody could find it."""
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await _generate(suite, text="x", detokenize=False, stop=["a"])
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert suite.scheduler.submits == []


async def test_unset_lengths(suite: Any) -> None:
    """Chat and the typed API run to the context's end; completions generate OpenAI's 16."""
    await suite.client.chat("hi")
    room = 1024 - len(suite.scheduler.submits[-1].prompt_token_ids)
    assert _last_sampling(suite).max_tokens == room
    await _generate(suite, token_ids=generate_pb2.TokenIds(ids=[1, 2]))
    assert _last_sampling(suite).max_tokens == 1022
    await suite.client.complete("x")
    assert _last_sampling(suite).max_tokens == 16
    assert EOS in suite.scheduler.submits[-1].eos_token_ids
