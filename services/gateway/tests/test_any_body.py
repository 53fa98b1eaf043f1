"""Any body at all through the OpenAI endpoints: an answer or an error in OpenAI's shape, never a 500, never a hang."""

from __future__ import annotations

import json
from typing import Any

import pytest
from gateway_fakes import FakeScheduler
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from quire_gateway.openai.chat_request import ChatRequest
from quire_gateway.openai.completion_request import CompletionRequest
from quire_gateway.openai.parameters import HARMLESS, NEUTRAL, UNSUPPORTED

_SERVED = sorted(
    {*ChatRequest.model_fields, *CompletionRequest.model_fields} - {"messages", "prompt", "model"}
)
_NAMES = sorted(
    {*ChatRequest.model_fields, *CompletionRequest.model_fields, *HARMLESS, *NEUTRAL, *UNSUPPORTED}
    - {"messages", "prompt", "model"}
)
_NUMBERS = st.one_of(
    st.integers(-3, 30),
    st.sampled_from([-(2**63), 2**31, 2**64, -1e30, 1e-30, 0.5, 1.0, 2.0, 1e308]),
    st.floats(allow_nan=False, allow_infinity=False),
)
_SCALARS = st.one_of(st.none(), st.booleans(), _NUMBERS, st.text(max_size=8))
_JSON = st.recursive(
    _SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=8,
)
#: Values that many parameters take, so that combinations of valid ones are met too.
_LIKELY = st.one_of(
    st.booleans(),
    st.integers(0, 8),
    st.floats(0, 1),
    st.sampled_from(["a", "left", ["a"], [1], {"65": 1}, {"include_usage": True}, "auto", {"type": "text"}]),
)
#: Mostly served ones: one that is not ends the matter.
_SOME_NAME = st.one_of(*[st.sampled_from(_SERVED)] * 5, st.sampled_from(_NAMES))
_OPTIONS = st.dictionaries(_SOME_NAME, st.one_of(_LIKELY, _LIKELY, _JSON), max_size=4)
_PROMPTS = st.one_of(
    st.text(max_size=20),
    st.lists(st.text(max_size=5), max_size=3),
    st.lists(st.integers(-1, 300), max_size=8),
    st.lists(st.lists(st.integers(0, 257), max_size=4), max_size=3),
    _JSON,
)
_PARTS = st.one_of(
    st.just({"type": "text", "text": "x"}), st.dictionaries(st.text(max_size=4), _JSON, max_size=2)
)
_MESSAGES = st.lists(
    st.one_of(
        st.builds(
            lambda role, content: {"role": role, "content": content},
            st.sampled_from(["system", "user", "assistant", "tool", "developer", "x"]),
            st.one_of(st.text(max_size=12), st.lists(_PARTS, max_size=2), _JSON),
        ),
        st.dictionaries(st.sampled_from(["role", "content", "name", "tool_calls", "x"]), _JSON, max_size=4),
    ),
    max_size=3,
)
_STATUSES = {200, 400, 404}


@pytest.fixture
async def small(make_suite: Any) -> Any:
    """A gateway whose engine is quick and ends soon."""
    return await make_suite([FakeScheduler(max_model_len=40, step_s=0.0, tokens_per_step=4)])


def _check(answer: Any) -> None:
    """What holds for every answer."""
    assert answer.status in _STATUSES, answer.body
    if answer.content_type == "text/event-stream":
        ended = {c["index"] for chunk in answer.chunks for c in chunk["choices"] if c["finish_reason"]}
        assert ended == {c["index"] for chunk in answer.chunks for c in chunk["choices"]}
        return
    body = json.loads(answer.body)
    if answer.status == 200:
        assert all(choice["finish_reason"] in ("stop", "length", "tool_calls") for choice in body["choices"])
        return
    assert list(body) == ["error"] and list(body["error"]) == ["message", "type", "param", "code"]
    assert body["error"]["message"] and body["error"]["type"] == "invalid_request_error"


_settings = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@_settings
@given(prompt=_PROMPTS, options=_OPTIONS)
async def test_any_completion(small: Any, prompt: Any, options: dict[str, Any]) -> None:
    """A prompt of any shape with any parameters of any value."""
    _check(await small.client.post("Completions", {"prompt": prompt, **options}))
    assert small.gateway.admission.num_in_flight == 0


@_settings
@given(messages=_MESSAGES, options=_OPTIONS)
async def test_any_chat(small: Any, messages: Any, options: dict[str, Any]) -> None:
    """Messages of any shape with any parameters of any value."""
    _check(await small.client.post("ChatCompletions", {"messages": messages, **options}))
    assert small.gateway.admission.num_in_flight == 0


@_settings
@given(
    body=st.one_of(
        st.binary(max_size=40),
        _JSON.map(lambda value: json.dumps(value).encode()),
        st.dictionaries(st.text(max_size=6), _JSON, max_size=3).map(lambda value: json.dumps(value).encode()),
        st.sampled_from(
            [b"", b"NaN", b'{"prompt": NaN}', b'{"prompt": "\\ud800"}', b"[" * 2000, b'{"a":' * 2000, b"\xff"]
        ),
    ),
    method=st.sampled_from(["ChatCompletions", "Completions"]),
)
async def test_any_bytes(small: Any, body: bytes, method: str) -> None:
    """Bytes that are no JSON, or JSON that is no request, are the client's error."""
    _check(await small.client.post(method, body))


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    options=st.fixed_dictionaries(
        {},
        optional={
            "n": st.integers(1, 3), "stream": st.booleans(), "echo": st.booleans(), "logprobs": st.integers(0, 3),
            "max_tokens": st.integers(0, 6), "min_tokens": st.integers(0, 4), "temperature": st.floats(0, 2),
            "stop": st.sampled_from(["l", ["o,", "wor"], "Hello"]), "seed": st.integers(0, 9),
            "ignore_eos": st.booleans(), "stop_token_ids": st.just([111]), "bad_words": st.just(["x"]),
            "return_token_ids": st.booleans(), "return_prompt_text": st.booleans(),
            "truncate_prompt_tokens": st.integers(1, 5), "stream_interval": st.integers(1, 5),
            "return_tokens_as_token_ids": st.booleans(), "include_stop_str_in_output": st.booleans(),
        },
    )
)  # fmt: skip
async def test_combinations_of_served_parameters(small: Any, options: dict[str, Any]) -> None:
    """What is served goes together: an answer, or a refusal that names one of the parameters that were sent."""
    answer = await small.client.complete("hello", **options)
    _check(answer)
    if answer.status != 200:
        assert answer.json["error"]["param"] in {*options, "prompt"}
