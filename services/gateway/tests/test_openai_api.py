"""The OpenAI endpoints over a real gRPC server, with fakes behind: answers, streams and errors."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
from gateway_fakes import EOS, FakeScheduler, FakeTokenizer

from quire.openai.v1 import openai_service_pb2
from quire_servicekit.errors import QueueFull

_TEXT = "Grüße, 世界! 👋🏽 end"

MESSAGES = [{"role": "user", "content": "x"}]


def _speaks(text: str | bytes, **options: Any) -> FakeScheduler:
    data = text.encode() if isinstance(text, str) else text
    return FakeScheduler(text_of=lambda submit, index: data, **options)


async def test_a_chat_answer_has_openais_form(suite: Any) -> None:
    """One JSON body with message, finish reason, usage and fingerprint."""
    suite.scheduler.num_cached_tokens = 4
    answer = await suite.client.chat("hi", model="fake")
    assert (answer.status, answer.content_type) == (200, "application/json")
    body = answer.json
    assert body["object"] == "chat.completion"
    assert body["id"].startswith("chatcmpl-")
    assert body["model"] == "fake"
    assert body["system_fingerprint"] == "fp_0123456789"
    choice = body["choices"][0]
    assert choice["message"] == {"role": "assistant", "content": "Hello, world", "refusal": None}
    assert (choice["index"], choice["finish_reason"], choice["stop_reason"]) == (0, "stop", None)
    prompt = len(b"user: hi\n")
    assert body["usage"] == {
        "prompt_tokens": prompt,
        "completion_tokens": 13,
        "total_tokens": prompt + 13,
        "prompt_tokens_details": {"cached_tokens": 4},
    }


async def test_a_chat_stream_is_role_deltas_finish_usage_done(suite: Any) -> None:
    """The exact order of chunks; usage is null except in its own chunk, which has no choices."""
    answer = await suite.client.chat(stream=True, stream_options={"include_usage": True})
    assert (answer.status, answer.content_type) == (200, "text/event-stream")
    chunks = answer.chunks
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert all(list(chunk["choices"][0]["delta"]) == ["content"] for chunk in chunks[1:-2])
    assert all(chunk["choices"][0]["delta"]["content"] for chunk in chunks[1:-2])
    assert chunks[-2]["choices"][0] == {
        "index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop", "stop_reason": None,
    }  # fmt: skip
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == 13
    assert all(chunk["usage"] is None for chunk in chunks[:-1])
    assert len({chunk["id"] for chunk in chunks}) == len({chunk["created"] for chunk in chunks}) == 1
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert answer.text() == "Hello, world"


async def test_a_stream_without_options_has_no_usage(suite: Any) -> None:
    """No usage key and no usage chunk unless asked for."""
    answer = await suite.client.chat(stream=True)
    assert all("usage" not in chunk for chunk in answer.chunks)
    assert answer.chunks[-1]["choices"][0]["finish_reason"] == "stop"


async def test_stream_extras_are_told_when_asked_for(suite: Any) -> None:
    """Running usage, the worker's clock and token ids, each by its own switch."""
    options = {"continuous_usage_stats": True, "include_timing": True}
    answer = await suite.client.chat(stream=True, stream_options=options, return_token_ids=True)
    deltas = [chunk for chunk in answer.chunks if chunk["choices"][0]["delta"].get("content")]
    assert [chunk["usage"]["completion_tokens"] for chunk in deltas] == sorted(
        chunk["usage"]["completion_tokens"] for chunk in deltas
    )
    assert all(chunk["quire"]["sampled_at_unix_us"] > 1000 for chunk in deltas)
    token_ids = [i for chunk in answer.chunks for i in chunk["choices"][0].get("token_ids", [])]
    assert bytes(i for i in token_ids if i != EOS) == b"Hello, world"


async def test_streamed_text_equals_the_whole_for_any_characters(make_suite: Any) -> None:
    """Characters that are cut between tokens come out whole, and the same as without streaming."""
    suite = await make_suite([_speaks(_TEXT)])
    streamed = await suite.client.chat(stream=True)
    whole = await suite.client.chat()
    assert streamed.text() == whole.json["choices"][0]["message"]["content"] == _TEXT
    pieces = [c["choices"][0]["delta"].get("content") for c in streamed.chunks[1:-1]]
    assert all(piece and "\ufffd" not in piece for piece in pieces)


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize("tokens_per_step", [1, 3, 50])
async def test_stop_texts_end_the_answer_and_the_engines_work(
    make_suite: Any, is_streamed: bool, tokens_per_step: int
) -> None:
    """No part of the stop text comes out, the engine is told at once, and counts don't depend on merging."""
    suite = await make_suite([_speaks("one STO two STOP three" + "x" * 500, tokens_per_step=tokens_per_step)])
    answer = await suite.client.complete(
        max_tokens=400, stop=["STOP", "never"], stream=is_streamed,
        **({"stream_options": {"include_usage": True}} if is_streamed else {}),
    )  # fmt: skip
    if is_streamed:
        assert answer.text() == "one STO two "
        end, usage = answer.chunks[-2]["choices"][0], answer.chunks[-1]["usage"]
        assert all(chunk["choices"][0]["text"] for chunk in answer.chunks[:-2])
    else:
        end, usage = answer.json["choices"][0], answer.json["usage"]
        assert end["text"] == "one STO two "
    assert (end["finish_reason"], end["stop_reason"]) == ("stop", "STOP")
    assert usage["completion_tokens"] == len("one STO two STOP")
    scheduler = suite.scheduler
    await _until(lambda: scheduler.aborts and not scheduler.running)


async def test_the_stop_text_is_kept_on_request(make_suite: Any) -> None:
    """include_stop_str_in_output keeps what matched, and nothing behind it."""
    suite = await make_suite([_speaks("abc.def")])
    answer = await suite.client.complete(stop=".", include_stop_str_in_output=True, max_tokens=50)
    assert answer.json["choices"][0]["text"] == "abc."


async def test_a_stop_token_is_reported_by_its_id(make_suite: Any) -> None:
    """stop_reason is the id of the request's own stop token; a token that is not special stays in the text."""
    suite = await make_suite([_speaks("abc.def")])
    answer = await suite.client.complete(stop_token_ids=[ord(".")], max_tokens=50)
    choice = answer.json["choices"][0]
    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == ("abc.", "stop", ord("."))


async def test_length_is_the_reason_at_the_limit(suite: Any) -> None:
    """max_tokens ends the answer with `length`."""
    choice = (await suite.client.complete(max_tokens=4)).json["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("Hell", "length")


async def test_n_choices_have_their_own_texts(make_suite: Any) -> None:
    """n continuations, streamed and not: every choice has role, text and finish; usage counts all."""
    scheduler = FakeScheduler(text_of=lambda submit, index: f"choice {index}".encode())
    suite = await make_suite([scheduler])
    whole = await suite.client.chat(n=3)
    assert [c["message"]["content"] for c in whole.json["choices"]] == ["choice 0", "choice 1", "choice 2"]
    assert whole.json["usage"]["completion_tokens"] == 3 * 9
    streamed = await suite.client.chat(n=3, stream=True)
    assert [streamed.text(index) for index in range(3)] == ["choice 0", "choice 1", "choice 2"]
    finished = [c["index"] for e in streamed.chunks for c in e["choices"] if c["finish_reason"]]
    assert sorted(finished) == [0, 1, 2]


async def test_one_choice_may_stop_by_text_while_others_go_on(make_suite: Any) -> None:
    """The engine ends just that sequence, so that its blocks return; the others go on to their own ends."""
    texts = [b"a STOP " + b"x" * 50, b"b goes on to the end"]
    suite = await make_suite([FakeScheduler(text_of=lambda submit, index: texts[index])])
    choices = (await suite.client.complete(n=2, stop="STOP", max_tokens=100)).json["choices"]
    assert [choice["text"] for choice in choices] == ["a ", "b goes on to the end"]
    assert [choice["stop_reason"] for choice in choices] == ["STOP", None]
    assert [index for _, index in suite.scheduler.sequence_aborts] == [0]
    assert suite.scheduler.aborts == []
    assert suite.gateway.pool._connections[suite.schedulers[0].address].num_dispatched == 0


async def test_several_prompts_are_several_choices(make_suite: Any) -> None:
    """Prompts times n choices in order of prompts; echo puts each prompt in front, token ids as text."""
    scheduler = FakeScheduler(
        text_of=lambda submit, index: (
            bytes(i for i in submit.prompt_token_ids if i < 256).upper() + b"%d" % index
        )
    )
    suite = await make_suite([scheduler])
    answer = await suite.client.complete(["ab", "cd"], n=2, echo=True)
    assert [c["text"] for c in answer.json["choices"]] == ["abAB0", "abAB1", "cdCD0", "cdCD1"]
    assert [c["index"] for c in answer.json["choices"]] == [0, 1, 2, 3]
    answer = await suite.client.complete([[97, 98], [99]], echo=True, stream=True)
    assert [answer.text(0), answer.text(1)] == ["abAB0", "cC0"]
    assert len({submit.request_id for submit in scheduler.submits}) == 4


async def test_chat_logprobs(suite: Any) -> None:
    """Each output token has its entry with bytes and alternatives, streamed and not."""
    whole = await suite.client.chat(logprobs=True, top_logprobs=2, max_tokens=3)
    content = whole.json["choices"][0]["logprobs"]["content"]
    assert [entry["token"] for entry in content] == ["H", "e", "l"]
    assert content[0]["bytes"] == [72] and content[0]["logprob"] == -0.5
    assert [top["token"] for top in content[1]["top_logprobs"]] == ["e", "A"]
    streamed = await suite.client.chat(logprobs=True, max_tokens=3, stream=True)
    entries = [
        entry
        for chunk in streamed.chunks
        for entry in (chunk["choices"][0]["logprobs"] or {}).get("content", [])
    ]
    assert [entry["token"] for entry in entries] == ["H", "e", "l"]
    assert entries[0]["top_logprobs"] == []


async def test_completion_logprobs(suite: Any) -> None:
    """The older form: parallel lists with offsets, streamed in pieces that go on where the last ended."""
    logprobs = (await suite.client.complete(logprobs=1, max_tokens=3)).json["choices"][0]["logprobs"]
    assert logprobs == {
        "tokens": ["H", "e", "l"],
        "token_logprobs": [-0.5, -0.5, -0.5],
        "top_logprobs": [{"H": -0.5}, {"e": -0.5}, {"l": -0.5}],
        "text_offset": [0, 1, 2],
    }
    streamed = await suite.client.complete(logprobs=0, max_tokens=3, stream=True)
    offsets = [o for c in streamed.chunks for o in (c["choices"][0]["logprobs"] or {}).get("text_offset", [])]
    assert offsets == [0, 1, 2]


async def test_the_engine_gets_every_default_resolved(make_suite: Any) -> None:
    """Model defaults fill what is unset, zero stays zero, the seed is drawn, and the room is the limit."""
    scheduler = FakeScheduler(max_model_len=100)
    scheduler.default_sampling.temperature = 0.6
    scheduler.default_sampling.top_p = 0.75
    suite = await make_suite([scheduler])
    await suite.client.chat("hi", temperature=0)
    await suite.client.chat("hi", seed=-1, max_tokens=5)
    first, second = scheduler.submits
    assert (first.sampling.temperature, first.sampling.top_p) == (0.0, 0.75)
    assert first.sampling.HasField("temperature") and first.sampling.HasField("seed")
    assert first.sampling.max_tokens == 100 - len(first.prompt_token_ids)
    assert list(first.eos_token_ids) == [EOS]
    assert (second.sampling.seed, second.sampling.max_tokens) == (2**64 - 1, 5)
    assert second.sampling.temperature == pytest.approx(0.6)


async def test_metadata_reaches_the_engine(suite: Any) -> None:
    """Tenant, trace, salt and priority travel with the request."""
    await suite.client.post(
        "Completions", {"prompt": "x", "cache_salt": "s", "priority": -2},
        x_client_id="tenant", traceparent="00-a-b-01",
    )  # fmt: skip
    submit = suite.scheduler.submits[0]
    assert (submit.tenant, submit.traceparent, submit.cache_salt, submit.priority) == (
        "tenant", "00-a-b-01", "s", -2,
    )  # fmt: skip


async def test_models_are_listed_and_found_by_name(suite: Any) -> None:
    """The list, one model, and 404 in the dialect's shape."""
    message = await suite.client.openai.ListModels(openai_service_pb2.ListModelsRequest())
    assert b'"max_model_len":1024' in message.data
    found = await suite.client.get_model("fake")
    assert (found.status, found.json["id"], found.json["object"]) == (200, "fake", "model")
    missing = await suite.client.get_model("other/name")
    assert missing.status == 404
    assert missing.json["error"]["code"] == "model_not_found"


@pytest.mark.parametrize(
    ("method", "body", "status", "param"),
    [
        ("ChatCompletions", {"messages": [{"role": "user", "content": "x"}], "model": "other"}, 404, "model"),
        ("ChatCompletions", {"messages": MESSAGES, "temperature": 9}, 400, "temperature"),
        ("ChatCompletions", {"messages": MESSAGES, "tools": [{}]}, 400, "tools[0].type"),
        ("ChatCompletions", {"messages": [{"role": "user", "content": "x" * 2000}]}, 400, "messages"),
        ("Completions", {"prompt": "x", "max_tokens": 5000}, 400, "prompt"),
        ("Completions", {"prompt": "x" * 10_001}, 400, "prompt"),
        (
            "ChatCompletions",
            {"messages": [{"role": "user", "content": "x"}], "chat_template_kwargs": {"messages": []}},
            400,
            "chat_template_kwargs",
        ),
        ("Completions", {"prompt": [VOCAB := 258]}, 400, "prompt"),
        ("Completions", {"prompt": "", "add_special_tokens": False}, 400, "prompt"),
        ("Completions", {"prompt": "x", "logprobs": 99}, 400, "logprobs"),
        ("Completions", {"prompt": "x", "stop": ["a"] * 17}, 400, "stop"),
        ("Completions", {"prompt": "x", "stream": True, "n": 0}, 400, "n"),
    ],
)
async def test_a_bad_request_has_its_status_also_when_streamed(
    suite: Any, method: str, body: dict[str, Any], status: int, param: str
) -> None:
    """The error is a JSON body with the right status and the parameter's name, and nothing reached the engine."""
    for is_streamed in (False, True):
        answer = await suite.client.post(method, {**body, "stream": is_streamed})
        assert (answer.status, answer.content_type) == (status, "application/json")
        assert answer.json["error"]["param"] == param
    assert suite.scheduler.submits == []
    assert suite.gateway.admission.num_in_flight == 0


async def test_a_prompt_that_does_not_fit_is_told_with_numbers(suite: Any) -> None:
    """Context overflow names the limit, what was asked for, and OpenAI's code."""
    answer = await suite.client.complete("x" * 100, max_tokens=1000)
    assert answer.json["error"]["code"] == "context_length_exceeded"
    for number in ("1024", "1101", "101", "1000"):
        assert number in answer.json["error"]["message"]


async def test_min_tokens_beyond_the_room_is_refused(suite: Any) -> None:
    """min_tokens is also held against the limit that follows from the context."""
    answer = await suite.client.chat(min_tokens=1020)
    assert (answer.status, answer.json["error"]["param"]) == (400, "min_tokens")


async def test_a_full_queue_is_429_with_retry_after(make_suite: Any) -> None:
    """Streamed or not, the status is right since the head waits for the engine's word."""
    suite = await make_suite([FakeScheduler(reject_with=QueueFull(3.0))])
    for is_streamed in (False, True):
        answer = await suite.client.chat(stream=is_streamed)
        assert (answer.status, answer.headers["retry-after"]) == (429, "3")
        assert answer.json["error"]["code"] == "rate_limit_exceeded"


async def test_too_many_requests_here_are_429_too(make_suite: Any) -> None:
    """The gateway's own limits, in all and per tenant."""
    suite = await make_suite([FakeScheduler(is_paused=True)], max_in_flight=3, max_in_flight_per_tenant=2)
    calls = [
        suite.client.start("Completions", {"prompt": "x", "n": 2}, x_client_id="a"),
        suite.client.start("Completions", {"prompt": "x", "n": 1}, x_client_id="b"),
    ]
    await _until(lambda: suite.gateway.admission.num_in_flight == 3)
    for tenant in ("a", "c"):
        answer = await suite.client.post("Completions", {"prompt": "x"}, x_client_id=tenant)
        assert answer.status == 429 and int(answer.headers["retry-after"]) >= 1
    for call in calls:
        call.cancel()
    await _until(lambda: suite.gateway.admission.num_in_flight == 0)


async def test_a_waiting_request_gets_its_head_after_the_grace(make_suite: Any) -> None:
    """A request that only waits its turn opens its stream with the role, before any token."""
    suite = await make_suite([FakeScheduler(is_paused=True)], accept_grace_s=0.02)
    call = suite.client.start(
        "ChatCompletions", {"messages": [{"role": "user", "content": "x"}], "stream": True}
    )
    first = await asyncio.wait_for(call.read(), 5)
    assert first.content_type == "text/event-stream" and b'"role":"assistant"' in first.data
    suite.scheduler.is_paused = False
    last = first
    while (message := await asyncio.wait_for(call.read(), 5)) is not grpc.aio.EOF:
        last = message
    assert last.data.endswith(b"data: [DONE]\n\n")


async def test_an_engine_error_is_an_event_and_no_normal_finish(make_suite: Any) -> None:
    """A stream that fails after its head ends with an error event and without [DONE]; a whole answer is a 500."""
    suite = await make_suite([FakeScheduler(end_with=5)])
    streamed = await suite.client.chat(stream=True)
    assert streamed.status == 200
    assert "[DONE]" not in streamed.events
    assert streamed.events[-1]["error"]["code"] == "internal_error"
    assert all(not c["finish_reason"] for e in streamed.events[:-1] for c in e["choices"])
    assert (await suite.client.chat()).status == 500


async def test_a_passed_deadline_is_504(make_suite: Any) -> None:
    """The engine's deadline finish is an error of its own."""
    suite = await make_suite([FakeScheduler(end_with=4)])
    answer = await suite.client.chat()
    assert (answer.status, answer.json["error"]["code"]) == (504, "deadline_exceeded")


async def test_a_stream_that_cannot_be_decoded_fails_alone(make_suite: Any) -> None:
    """A failing detokenisation is an internal error of that request."""
    tokenizer = FakeTokenizer()
    suite = await make_suite(tokenizers=[tokenizer])
    tokenizer.fail_streams = "unknown id"
    assert (await suite.client.chat()).status == 500
    tokenizer.fail_streams = ""
    assert (await suite.client.chat()).status == 200


async def test_a_model_without_chat_template_refuses_messages(make_suite: Any) -> None:
    """Plain prompts still work."""
    tokenizer = FakeTokenizer()
    tokenizer.has_chat_template = False
    suite = await make_suite(tokenizers=[tokenizer])
    answer = await suite.client.chat()
    assert (answer.status, answer.json["error"]["param"]) == (400, "messages")
    assert (await suite.client.complete()).status == 200


async def test_a_bug_is_a_500_without_details(suite: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What we did not foresee is logged, and the client learns nothing of it."""

    def broken(*args: object) -> None:
        raise KeyError("inner secret")

    monkeypatch.setattr(suite.gateway.pool, "submit", broken)
    answer = await suite.client.chat()
    assert answer.status == 500
    assert b"secret" not in answer.body
    assert suite.gateway.admission.num_in_flight == 0


async def _until(condition: Any) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.002)
