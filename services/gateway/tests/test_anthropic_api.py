"""The Anthropic endpoints over a real gRPC server, with fakes behind: messages, events and errors."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from gateway_fakes import FakeScheduler, FakeTokenizer
from google.api import httpbody_pb2

from quire.anthropic.v1 import anthropic_service_pb2_grpc
from quire_gateway.anthropic.conversation import Message, openai_messages, system_text
from quire_servicekit.errors import QueueFull, Unavailable

_HI = [{"role": "user", "content": "hi"}]


def _speaks(text: str, **options: Any) -> FakeScheduler:
    return FakeScheduler(text_of=lambda submit, index: text.encode(), **options)


async def _call(
    suite: Any, method: str, body: Any, **metadata: str
) -> tuple[int, str, bytes, dict[str, str]]:
    """(status, content type, body, metadata) of one call."""
    stub = anthropic_service_pb2_grpc.AnthropicStub(suite.client.channel)
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    pairs = [(key.replace("_", "-"), value) for key, value in metadata.items()]
    call = getattr(stub, method)(httpbody_pb2.HttpBody(data=data), metadata=pairs)
    async with asyncio.timeout(15):
        messages = [message async for message in call]
    headers = {key: str(value) for key, value in await call.initial_metadata()}
    data = b"".join(message.data for message in messages)
    return int(headers.get("x-http-status", "200")), messages[0].content_type, data, headers


async def _create(suite: Any, messages: Any = _HI, **options: Any) -> tuple[int, Any]:
    """Status and JSON of one message."""
    body = {"model": "fake", "max_tokens": 100, "messages": messages, **options}
    status, content_type, data, _ = await _call(suite, "CreateMessage", body)
    assert content_type == "application/json"
    return status, json.loads(data)


async def _events(suite: Any, messages: Any = _HI, **options: Any) -> list[tuple[str, Any]]:
    """(name, data) of each event of one stream."""
    body = {"model": "fake", "max_tokens": 100, "messages": messages, "stream": True, **options}
    status, content_type, data, _ = await _call(suite, "CreateMessage", body)
    assert (status, content_type) == (200, "text/event-stream")
    found = []
    for event in data.decode().removesuffix("\n\n").split("\n\n"):
        name, line = event.split("\n")
        found.append((name.removeprefix("event: "), json.loads(line.removeprefix("data: "))))
    return found


async def test_a_message_has_anthropics_form(suite: Any) -> None:
    """One JSON message: role, text block, stop reason, and usage with the cached tokens apart."""
    suite.scheduler.num_cached_tokens = 4
    status, message = await _create(suite)
    assert status == 200
    assert message.pop("id").startswith("msg_")
    assert message == {
        "type": "message",
        "role": "assistant",
        "model": "fake",
        "content": [{"type": "text", "text": "Hello, world"}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": len(b"user: hi\n") - 4,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 4,
            "output_tokens": 13,
            "output_tokens_details": {"thinking_tokens": 0},
        },
    }


async def test_a_stream_is_named_events_in_order(suite: Any) -> None:
    """Each event's name is its data's type; their order is the dialect's, and the text is whole."""
    events = await _events(suite)
    assert all(name == data["type"] for name, data in events)
    names = [name for name, _ in events]
    assert names[:3] == ["message_start", "ping", "content_block_start"]
    assert set(names[3:-3]) == {"content_block_delta"}
    assert names[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    start, end = events[0][1]["message"], events[-2][1]
    assert (start["content"], start["stop_reason"], start["usage"]["output_tokens"]) == ([], None, 0)
    assert end["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}
    assert end["usage"]["output_tokens"] == 13
    text = "".join(data["delta"]["text"] for name, data in events if name == "content_block_delta")
    assert text == "Hello, world"


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_a_stop_sequence_is_told_and_not_sent(make_suite: Any, is_streamed: bool) -> None:
    """The stop reason is stop_sequence with the text that matched."""
    suite = await make_suite([_speaks("one END two")])
    if is_streamed:
        events = await _events(suite, stop_sequences=["END"])
        end = events[-2][1]["delta"]
        text = "".join(d["delta"]["text"] for name, d in events if name == "content_block_delta")
    else:
        _, end = await _create(suite, stop_sequences=["END"])
        text = end["content"][0]["text"]
    assert (end["stop_reason"], end["stop_sequence"], text) == ("stop_sequence", "END", "one ")


async def test_max_tokens_is_a_stop_reason(suite: Any) -> None:
    """An output that was cut says so."""
    _, message = await _create(suite, max_tokens=5)
    assert (message["stop_reason"], message["usage"]["output_tokens"]) == ("max_tokens", 5)


def test_blocks_become_the_conversation() -> None:
    """System, text, thoughts, calls and their results get the OpenAI form; neighbours are one turn."""
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}]},
        {"role": "user", "content": "b"},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "text", "text": "c"},
                {"type": "tool_use", "id": "t1", "name": "f", "input": {"x": 1}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "5"}]},
                {"type": "tool_result", "tool_use_id": "t2", "content": "gone", "is_error": True},
                {"type": "text", "text": "d"},
            ],
        },
    ]
    parsed = [Message.model_validate(message) for message in messages]
    system = system_text([{"type": "text", "text": "be brief"}, {"type": "text", "text": "and kind"}])
    turns = openai_messages(system, parsed)
    assert [(turn["role"], turn["content"]) for turn in turns] == [
        ("system", "be brief\nand kind"), ("user", "a\nb"), ("assistant", "c"), ("tool", "5"),
        ("tool", "Error: gone"), ("user", "d"),
    ]  # fmt: skip
    assert turns[2]["reasoning_content"] == "hm"
    function = {"name": "f", "arguments": '{"x":1}'}
    assert turns[2]["tool_calls"] == [{"id": "t1", "type": "function", "function": function}]
    assert turns[3]["tool_call_id"] == "t1"


async def test_a_last_assistant_turn_is_continued(suite: Any) -> None:
    """The template goes on with the assistant's own words instead of opening a new turn."""
    await _create(suite, [*_HI, {"role": "assistant", "content": "The answer is"}])
    _, request = suite.tokenizer.rendered[-1]
    assert request.continue_final_message
    assert not request.add_generation_prompt


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"temperature": 1.5}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"stop_sequences": [""]}, "stop_sequences"),
        ({"no_such": 1}, "no_such"),
        ({"container": "c"}, "container"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
        ({"messages": [{"role": "user", "content": []}]}, "messages[0].content"),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools[0].type"),
        ({"tools": [{"name": "f"}]}, "tools[0].input_schema"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "enabled", "budget_tokens": 100}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "enabled", "budget_tokens": 9}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "adaptive"}, "output_config": {"effort": "high"}}, "output_config.effort"),
    ],
)  # fmt: skip
async def test_bad_requests_are_refused_by_name(suite: Any, options: dict[str, Any], named: str) -> None:
    """What is wrong or not supported is 400 in Anthropic's shape, naming the parameter."""
    status, answer = await _create(suite, **options)
    assert status == 400
    assert answer["type"] == "error"
    assert answer["error"]["type"] == "invalid_request_error"
    assert named in answer["error"]["message"]


async def test_malformed_json_and_unknown_models(suite: Any) -> None:
    """A body that is no JSON is 400; a model that is not served is not_found_error, with the request's id."""
    status, _, data, _ = await _call(suite, "CreateMessage", b"{")
    assert (status, json.loads(data)["error"]["type"]) == (400, "invalid_request_error")
    body = {"model": "claude", "max_tokens": 1, "messages": _HI}
    status, _, data, _ = await _call(suite, "CreateMessage", body, x_request_id="r-1")
    answer = json.loads(data)
    assert (status, answer["error"]["type"], answer["request_id"]) == (404, "not_found_error", "r-1")


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize(
    ("cause", "status", "kind"),
    [(QueueFull(2.0), 429, "rate_limit_error"), (Unavailable("worker", 3.0), 529, "overloaded_error")],
)
async def test_refusals_of_the_engine_have_their_status(
    make_suite: Any, cause: Exception, status: int, kind: str, is_streamed: bool
) -> None:
    """A full queue is 429 and an overload 529, streamed or not, with the delay to retry after."""
    suite = await make_suite([FakeScheduler(reject_with=cause)], resume_timeout_s=0.2, accept_grace_s=5.0)
    body = {"model": "fake", "max_tokens": 5, "messages": _HI, "stream": is_streamed}
    got, _, data, headers = await _call(suite, "CreateMessage", body)
    assert (got, json.loads(data)["error"]["type"]) == (status, kind)
    assert int(headers["retry-after"]) >= 1


async def test_an_error_after_the_head_is_an_event(make_suite: Any) -> None:
    """A stream whose engine fails ends with `event: error`, never as if it were complete."""
    from quire.sampling.v1 import sampling_pb2

    suite = await make_suite([_speaks("x" * 50, end_with=sampling_pb2.FINISH_REASON_ERROR)])
    events = await _events(suite)
    name, data = events[-1]
    assert name == "error"
    assert data["error"]["type"] == "api_error"
    assert "message_stop" not in [name for name, _ in events]


async def test_a_quiet_stream_says_that_it_lives(make_suite: Any) -> None:
    """While the engine is silent the stream carries pings, and its text is complete all the same."""
    from quire_gateway.anthropic.endpoints import AnthropicEndpoints
    from quire_gateway.requests import CallInfo

    suite = await make_suite([_speaks("slow", step_s=0.1)])
    endpoints = AnthropicEndpoints(suite.gateway.chat_runner, ping_interval_s=0.02)
    body = json.dumps({"model": "fake", "max_tokens": 9, "messages": _HI, "stream": True}).encode()
    data = b"".join([p async for p in endpoints.messages(body, CallInfo()) if isinstance(p, bytes)])
    assert data.count(b"event: ping") >= 3
    assert data.count(b'"text_delta"') >= 1
    assert data.endswith(b'event: message_stop\ndata: {"type":"message_stop"}\n\n')


async def test_tokens_are_counted_without_generating(suite: Any) -> None:
    """count_tokens says what the same message's input would be; nothing reaches the engine."""
    status, _, data, _ = await _call(suite, "CountTokens", {"model": "fake", "messages": _HI})
    assert (status, json.loads(data)) == (200, {"input_tokens": len(b"user: hi\n")})
    assert suite.scheduler.submits == []
    status, _, data, _ = await _call(suite, "CountTokens", {"model": "none", "messages": _HI})
    assert (status, json.loads(data)["error"]["type"]) == (404, "not_found_error")


_TEMPLATE = "{% for tool in tools %}<tool_call>{% endfor %}<think></think>"
_THINKS = (
    "<think>Look it up.</think>I look.\n"
    '<tool_call>\n{"name": "f", "arguments": {"x": [1, {"y": "z"}]}}\n</tool_call>'
)
_TOOL = {"name": "f", "input_schema": {"type": "object", "properties": {"x": {}}}}


async def _thinker(make_suite: Any, tokens_per_step: int = 3) -> Any:
    tokenizer = FakeTokenizer(is_text_bytes=True)
    tokenizer.chat_templates = [_TEMPLATE]
    return await make_suite([_speaks(_THINKS, tokens_per_step=tokens_per_step)], [tokenizer])


@pytest.mark.parametrize("tokens_per_step", [1, 5, 500])
async def test_blocks_of_a_stream_are_those_of_the_message(make_suite: Any, tokens_per_step: int) -> None:
    """Thinking, text and calls are blocks one after another; their deltas joined are the whole message's blocks."""
    suite = await _thinker(make_suite, tokens_per_step)
    options = {"max_tokens": 400, "thinking": {"type": "enabled", "budget_tokens": 200}, "tools": [_TOOL]}
    _, message = await _create(suite, **options)
    assert [block["type"] for block in message["content"]] == ["thinking", "text", "tool_use"]
    assert message["content"][0]["thinking"] == "Look it up."
    assert message["content"][2]["input"] == {"x": [1, {"y": "z"}]}
    assert message["stop_reason"] == "tool_use"
    blocks: list[dict[str, Any]] = []
    is_open = False
    for name, data in await _events(suite, **options):
        if name == "content_block_start":
            assert not is_open and data["index"] == len(blocks)
            blocks.append(data["content_block"] | {"joined": ""})
            is_open = True
        elif name == "content_block_delta":
            assert is_open and data["index"] == len(blocks) - 1
            blocks[-1]["joined"] += next(v for k, v in data["delta"].items() if k != "type")
        elif name == "content_block_stop":
            is_open = False
    joined = [block["joined"] for block in blocks]
    assert joined[:2] == [message["content"][0]["thinking"], message["content"][1]["text"]]
    assert json.loads(joined[2]) == message["content"][2]["input"]


async def test_without_thinking_there_is_no_thinking_block(make_suite: Any) -> None:
    """A model that thinks although nobody asked keeps it to itself; what was cut in a call is no input."""
    suite = await _thinker(make_suite)
    _, message = await _create(suite, tools=[_TOOL], max_tokens=400)
    assert [block["type"] for block in message["content"]] == ["text", "tool_use"]
    cut = len(_THINKS.encode()) - 25
    _, message = await _create(suite, tools=[_TOOL], max_tokens=cut)
    assert message["stop_reason"] == "max_tokens"
    assert all(block["input"] == {} for block in message["content"] if block["type"] == "tool_use")
