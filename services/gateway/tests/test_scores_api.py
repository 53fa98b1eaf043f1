"""Log-probabilities of prompts and outputs through both APIs, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from gateway_fakes import FakeScheduler

from quire.inference.v1 import chat_completion_pb2, chat_pb2, generate_pb2
from quire.sampling.v1 import sampling_pb2


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
    assert (await suite.client.complete("x", logprobs=-1, bad_words=["no"], max_tokens=1)).status == 200
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
