"""Any body at all through messages, responses and batches: an answer or an error in the right shape, never a 500."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from gateway_fakes import FakeScheduler, FakeTokenizer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from quire_gateway.anthropic.endpoints import AnthropicEndpoints
from quire_gateway.anthropic.parameters import NAMES as ANTHROPIC_NAMES
from quire_gateway.anthropic.requests import MessagesRequest
from quire_gateway.openai.batch_endpoints import BatchEndpoints
from quire_gateway.openai.response_request import NAMES as RESPONSE_NAMES
from quire_gateway.openai.response_request import ResponseRequest
from quire_gateway.requests import CallInfo

_SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 30),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=8),
)
_KEYS = st.one_of(
    st.text(max_size=4),
    st.sampled_from(
        ["type", "text", "role", "content", "name", "id", "tools", "format", "schema", "effort", "mode"]
    ),
)
_WORDS = st.sampled_from(
    ["text", "tool_use", "tool_result", "thinking", "enabled", "auto", "any", "tool", "function", "mcp", "message",
     "function_call", "function_call_output", "reasoning", "mcp_call", "mcp_list_tools", "mcp_approval_request",
     "mcp_approval_response", "json_schema", "json_object", "allowed_tools", "input_text", "output_text", "user",
     "assistant"]
)  # fmt: skip
_JSON = st.recursive(
    st.one_of(_SCALARS, _WORDS),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(_KEYS, inner, max_size=4)),
    max_leaves=10,
)
_SETTINGS = settings(
    max_examples=250,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def body_of(model: Any, names: Any, valid: dict[str, Any]) -> Any:
    """Bodies that are valid but for a few parameters, known and unknown ones."""
    known = sorted(
        {*model.model_fields, *names.harmless, *names.neutral, *names.unsupported} - {"background"}
    )
    options = st.dictionaries(st.one_of(st.sampled_from(known), st.text(max_size=5)), _JSON, max_size=3)
    return st.one_of(options.map(lambda some: valid | some), options.map(lambda some: valid | some), options)


@pytest.fixture
async def small(make_suite: Any, tmp_path: Path) -> Any:
    """A gateway whose engine is quick and ends soon."""
    tokenizer = FakeTokenizer(is_text_bytes=True)
    tokenizer.chat_templates = ["{% for tool in tools %}<tool_call>{% endfor %}<think></think>"]
    scheduler = FakeScheduler(max_model_len=4000, step_s=0.0, tokens_per_step=40)
    options = {"batch_folder": tmp_path / "b", "max_stored_responses": 4}
    return await make_suite([scheduler], [tokenizer], **options)


async def send(endpoint: Any, body: Any) -> tuple[int, str, bytes]:
    """Status, content type and body of an answer."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    pieces = [piece async for piece in endpoint(data, CallInfo())]
    head, *rest = pieces
    return head.status, head.content_type, b"".join(rest)


_MESSAGE = {"model": "fake", "max_tokens": 5, "messages": [{"role": "user", "content": "x"}]}


@_SETTINGS
@given(body=body_of(MessagesRequest, ANTHROPIC_NAMES, _MESSAGE))
async def test_messages(small: Any, body: Any) -> None:
    """Every body gets a message, events, or an error of Anthropic's."""
    endpoints = AnthropicEndpoints(small.gateway.chat_runner)
    for endpoint in (endpoints.messages, endpoints.count_tokens):
        status, kind, data = await send(endpoint, body)
        assert status in (200, 400, 404), data
        if status == 200 and kind == "text/event-stream":
            assert data.endswith(b'{"type":"message_stop"}\n\n')
        elif status == 200:
            assert json.loads(data).get("type") == "message" or "input_tokens" in json.loads(data)
        else:
            assert json.loads(data)["error"]["message"]


@_SETTINGS
@given(body=body_of(ResponseRequest, RESPONSE_NAMES, {"input": "x", "max_output_tokens": 5}))
async def test_responses(small: Any, body: Any) -> None:
    """Every body gets a response, events, or an error of OpenAI's."""
    status, kind, data = await send(small.gateway.responses.create, body)
    assert status in (200, 400, 404), data
    if kind == "text/event-stream":
        last = json.loads(data.decode().rstrip().rpartition("data: ")[2])
        assert last["type"] in ("response.completed", "response.incomplete"), last
    elif status == 200:
        assert json.loads(data)["status"] in ("completed", "incomplete")
    else:
        assert set(json.loads(data)["error"]) == {"message", "type", "param", "code"}


_ITEMS = st.lists(st.dictionaries(_KEYS, _JSON, max_size=5), max_size=3)


@_SETTINGS
@given(items=_ITEMS, tools=_ITEMS)
async def test_items_and_tools(small: Any, items: Any, tools: Any) -> None:
    """Lists of almost items, blocks and tools are read or refused by name, in both dialects."""
    messages = [{"role": "user", "content": items}]
    anthropic = AnthropicEndpoints(small.gateway.chat_runner)
    bodies = [
        (small.gateway.responses.create, {"input": items, "tools": tools, "max_output_tokens": 3}),
        (small.gateway.responses.create, {"input": messages, "max_output_tokens": 3}),
        (anthropic.messages, _MESSAGE | {"messages": messages, "tools": tools}),
        (anthropic.messages, _MESSAGE | {"messages": [{"role": "assistant", "content": items}]}),
    ]
    for endpoint, body in bodies:
        status, _, data = await send(endpoint, body)
        assert status in (200, 400), data


@_SETTINGS
@given(
    body=st.one_of(_JSON, st.binary(max_size=60)),
    content_type=st.one_of(st.text(max_size=20), st.just("multipart/form-data; boundary=a")),
)
async def test_batches(small: Any, body: Any, content_type: str) -> None:
    """Every body and every form gets an error of OpenAI's: none of them is whole."""
    endpoints = BatchEndpoints(small.gateway.batches)
    for endpoint in (
        endpoints.create_batch,
        lambda data, call: endpoints.create_file(data, content_type, call),
    ):
        status, _, data = await send(endpoint, body)
        assert status == 400, data
        assert set(json.loads(data)["error"]) == {"message", "type", "param", "code"}


async def test_deep_schemas_are_refused(small: Any) -> None:
    """A schema that is nested beyond every reason is the client's error, wherever it stands."""
    schema: dict[str, Any] = {"type": "object"}
    for _ in range(200):
        schema = {"anyOf": [schema]} if "anyOf" not in schema else {"not": schema}
    anthropic = AnthropicEndpoints(small.gateway.chat_runner)
    tool = {"type": "function", "name": "f", "parameters": schema}
    for endpoint, body in (
        (
            anthropic.messages,
            _MESSAGE | {"output_config": {"format": {"type": "json_schema", "schema": schema}}},
        ),
        (anthropic.messages, _MESSAGE | {"tools": [{"name": "f", "input_schema": schema}]}),
        (small.gateway.responses.create, {"input": "x", "tools": [tool]}),
        (
            small.gateway.responses.create,
            {"input": "x", "text": {"format": {"type": "json_schema", "name": "n", "schema": schema}}},
        ),
    ):
        status, _, data = await send(endpoint, body)
        assert status == 400, data
