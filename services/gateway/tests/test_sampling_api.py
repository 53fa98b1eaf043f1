"""Sampling parameters and extras through both APIs: what the engine gets, and what comes back."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
from gateway_fakes import BOS, EOS, FakeScheduler

from quire.inference.v1 import chat_completion_pb2, chat_pb2, generate_pb2
from quire.sampling.v1 import sampling_pb2
from quire_gateway.settings import GatewaySettings


async def _generate(suite: Any, **fields: Any) -> list[Any]:
    call = suite.client.inference.Generate(generate_pb2.GenerateRequest(**fields), timeout=15)
    return [event async for event in call]


def _last_sampling(suite: Any) -> sampling_pb2.SamplingParams:
    sampling: sampling_pb2.SamplingParams = suite.scheduler.submits[-1].sampling
    return sampling


# ---- Log-probabilities of prompts ----------------------------------------------------------------------------------


async def test_echo_with_logprobs_scores_prompt_and_output(suite: Any) -> None:
    """One list over prompt and output: no value for the first token, offsets into the echoed text."""
    answer = await suite.client.complete("abcde\u00e9", echo=True, logprobs=1, max_tokens=3)
    choice = answer.json["choices"][0]
    assert choice["text"] == "abcde\u00e9Hel"
    found = choice["logprobs"]
    assert found["tokens"] == ["<bos>", "a", "b", "c", "d", "e", "\ufffd", "\ufffd", "H", "e", "l"]
    assert found["token_logprobs"] == [None, *(-k / 8 for k in range(1, 8)), -0.5, -0.5, -0.5]
    assert found["top_logprobs"][0] is None and found["top_logprobs"][1] == {"A": -0.25, "a": -0.125}
    assert found["text_offset"][:7] == [0, 0, 1, 2, 3, 4, 5]
    assert "prompt_logprobs" not in choice


async def test_a_streamed_echo_brings_the_same_logprobs(suite: Any) -> None:
    """The pieces of a stream, joined, are the whole answer's lists."""
    whole = await suite.client.complete("abc", echo=True, logprobs=0, max_tokens=4)
    stream = await suite.client.complete("abc", echo=True, logprobs=0, max_tokens=4, stream=True)
    expected = whole.json["choices"][0]
    assert stream.text() == expected["text"]
    for name in ("tokens", "token_logprobs", "text_offset", "top_logprobs"):
        pieces = [c["choices"][0]["logprobs"] for c in stream.chunks if c["choices"][0]["logprobs"]]
        assert [item for piece in pieces for item in piece[name]] == expected["logprobs"][name]


@pytest.mark.parametrize("stream", [False, True])
async def test_echo_without_output_scores_the_prompt_alone(suite: Any, stream: bool) -> None:
    """max_tokens 0 with echo: what must be generated for it is neither shown nor counted."""
    answer = await suite.client.complete("abc", echo=True, logprobs=0, max_tokens=0, stream=stream)
    if stream:
        assert answer.text() == "abc"
        assert answer.chunks[-1]["choices"][0]["finish_reason"] == "length"
        return
    choice = answer.json["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("abc", "length")
    assert choice["logprobs"]["tokens"] == ["<bos>", "a", "b", "c"]
    assert answer.json["usage"]["completion_tokens"] == 0
    assert _last_sampling(suite).max_tokens == 1


async def test_prompt_logprobs_of_both_endpoints(suite: Any) -> None:
    """null, then a map by token id that has the prompt's own token and the most probable ones."""
    body = (await suite.client.complete([[65, 66, 67], [68, 69]], prompt_logprobs=1)).json
    assert [len(choice["prompt_logprobs"]) for choice in body["choices"]] == [3, 2]
    first = body["choices"][0]["prompt_logprobs"]
    assert first[0] is None
    assert first[1] == {
        "65": {"logprob": -0.25, "rank": 1, "decoded_token": "A"},
        "66": {"logprob": -0.125, "rank": 2, "decoded_token": "B"},
    }
    chat = (await suite.client.chat("hi", prompt_logprobs=0)).json
    assert len(chat["prompt_logprobs"]) == len(b"user: hi\n")
    assert "prompt_logprobs" not in chat["choices"][0]


async def test_prompt_logprobs_are_told_once_when_the_engine_is_lost(make_suite: Any) -> None:
    """A lost engine's successor scores the prompt again: each position counts once, and the answer is complete."""
    schedulers = [FakeScheduler(prompt_chunk=2, break_after=3), FakeScheduler(prompt_chunk=2)]
    suite = await make_suite(schedulers)
    body = (await suite.client.complete([list(range(65, 85))], prompt_logprobs=0)).json
    entries = body["choices"][0]["prompt_logprobs"][1:]
    assert [next(iter(entry.values()))["logprob"] for entry in entries] == [-k / 8 for k in range(1, 20)]


async def test_a_scored_prompt_is_not_scored_again_after_a_loss(make_suite: Any) -> None:
    """Once all positions are here the next engine is not asked for them, and may use its cache."""
    slow = FakeScheduler(break_after=3)
    suite = await make_suite([slow])
    await suite.client.complete([[65, 66, 67]], prompt_logprobs=1)
    first, second = slow.submits
    assert first.sampling.HasField("num_prompt_logprobs")
    assert not second.sampling.HasField("num_prompt_logprobs")
    assert second.resumed[0].output_token_ids


async def test_typed_prompt_logprobs_come_once_before_the_first_delta(suite: Any) -> None:
    """One event of its own, with bytes of tokens; requests that did not ask have none."""
    sampling = sampling_pb2.SamplingParams(num_prompt_logprobs=1)
    token_ids = generate_pb2.TokenIds(ids=[65, 66, 67])
    events = await _generate(suite, token_ids=token_ids, sampling=sampling, n=2)
    kinds = [event.WhichOneof("event") for event in events]
    assert kinds[:2] == ["started", "prompt_logprobs"] and kinds.count("prompt_logprobs") == 1
    found = events[1].prompt_logprobs.tokens
    assert [(entry.token_id, entry.token_bytes) for entry in found] == [(66, b"B"), (67, b"C")]
    assert (found[1].logprob, found[1].rank, found[1].top[0].token_id) == (-0.25, 2, 65)
    plain = await _generate(suite, token_ids=token_ids)
    assert all(not event.HasField("prompt_logprobs") for event in plain)


async def test_the_typed_chat_tells_of_its_prompt_too(suite: Any) -> None:
    """Chat has the prompt's tokens, text and log-probabilities in the same messages as Generate."""
    chat = chat_pb2.Chat(messages=[chat_pb2.ChatMessage(role="user", content="hi")])
    generation = generate_pb2.GenerateRequest(
        chat=chat, return_prompt_text=True, return_prompt_token_ids=True, bad_words=["no"]
    )
    generation.sampling.num_prompt_logprobs = 0
    call = suite.client.inference.Chat(chat_completion_pb2.ChatRequest(generation=generation), timeout=15)
    events = [event async for event in call]
    assert [event.WhichOneof("event") for event in events[:2]] == ["started", "prompt_logprobs"]
    assert events[0].started.prompt_text == "user: hi\n"
    assert list(events[0].started.prompt_token_ids) == list(b"user: hi\n")
    assert [entry.token_id for entry in events[1].prompt_logprobs.tokens] == list(b"ser: hi\n")
    assert _last_sampling(suite).bad_token_sequences


# ---- Log-probabilities of outputs ----------------------------------------------------------------------------------


async def test_logprob_token_ids(suite: Any) -> None:
    """Just the named tokens come back, in both dialects."""
    answer = await suite.client.complete("x", logprob_token_ids=[70, 65], max_tokens=1)
    assert answer.json["choices"][0]["logprobs"]["top_logprobs"] == [{"F": -3.0, "A": -3.0, "H": -0.5}]
    chat = await suite.client.chat(logprobs=True, logprob_token_ids=[70], max_tokens=1)
    content = chat.json["choices"][0]["logprobs"]["content"]
    assert [top["token"] for top in content[0]["top_logprobs"]] == ["F"]
    sampling = sampling_pb2.SamplingParams(logprob_token_ids=[70, 65], max_tokens=1)
    events = await _generate(suite, text="x", sampling=sampling)
    (logprobs,) = [entry for event in events for entry in event.delta.logprobs]
    assert [top.token_id for top in logprobs.top] == [70, 65]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"logprob_token_ids": [300]}, "logprob_token_ids"),
        ({"logprob_token_ids": [1] * 129}, "logprob_token_ids"),
        ({"logprob_token_ids": [1], "logprobs": 2}, "logprob_token_ids"),
        ({"logprobs": -1}, "logprobs"),
        ({"prompt_logprobs": 21}, "prompt_logprobs"),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        ({"bad_words": ["x"] * 65}, "bad_words"),
        ({"bad_words": [""]}, "bad_words"),
        ({"bad_words": ["x" * 65]}, "bad_words"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"truncation_side": "middle"}, "truncation_side"),
        ({"stream_interval": 0, "stream": True}, "stream_interval"),
        ({"session_id": "s" * 257}, "session_id"),
        ({"length_penalty": 2.0}, "length_penalty"),
        ({"use_beam_search": True, "stream": True}, "use_beam_search"),
        ({"use_beam_search": True, "top_p": 0.5}, "top_p"),
        ({"use_beam_search": True, "stop": "x"}, "stop"),
        ({"use_beam_search": True, "echo": True, "logprobs": 1}, "prompt_logprobs"),
        ({"use_beam_search": True, "length_penalty": 11}, "length_penalty"),
        ({"suffix": "x"}, "suffix"),
        ({"best_of": 2}, "best_of"),
        ({"max_tokens": 0}, "max_tokens"),
    ],
)
async def test_what_cannot_be_is_refused_by_name(suite: Any, body: dict[str, Any], param: str) -> None:
    """Limits and combinations: status 400, the parameter's name, and nothing reaches the engine."""
    answer = await suite.client.complete("x", **body)
    assert (answer.status, answer.json["error"]["param"]) == (400, param)
    assert suite.scheduler.submits == []


async def test_the_whole_vocabulary_where_the_operator_allows_it(make_suite: Any) -> None:
    """-1 is every token, under a limit of -1; otherwise max_logprobs is the limit that refuses more."""
    suite = await make_suite(max_logprobs=-1)
    await suite.client.complete("x", logprobs=-1, max_tokens=1)
    assert _last_sampling(suite).num_logprobs == 258
    tight = await make_suite(max_logprobs=2)
    assert (await tight.client.complete("x", logprobs=3)).json["error"]["message"].count("from 0 to 2")
    assert (await tight.client.complete("x", logprobs=2)).status == 200


async def test_tokens_as_token_ids(suite: Any) -> None:
    """Tokens are written token_id:N where the client asked for that, in every list."""
    answer = await suite.client.complete(
        [[65, 66]], echo=True, logprobs=1, prompt_logprobs=0, return_tokens_as_token_ids=True, max_tokens=1
    )
    choice = answer.json["choices"][0]
    assert choice["logprobs"]["tokens"] == ["token_id:65", "token_id:66", "token_id:72"]
    assert choice["prompt_logprobs"][1]["66"]["decoded_token"] == "token_id:66"
    chat = await suite.client.chat(logprobs=True, return_tokens_as_token_ids=True, max_tokens=1)
    assert chat.json["choices"][0]["logprobs"]["content"][0]["token"] == "token_id:72"


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
