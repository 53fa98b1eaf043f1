"""Tokenize, detokenize and render in the OpenAI dialect, through a whole gateway over fakes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from gateway_fakes import BOS, EOS, FakeScheduler, FakeTokenizer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from quire.model.v1 import model_pb2

MESSAGES = [{"role": "user", "content": "hi"}]
TOOL = {"type": "function", "function": {"name": "look"}}


async def test_tokens_of_a_prompt(suite: Any) -> None:
    """Ids, their number, the model's limit, and each token's text where that is wanted; nothing reaches an engine."""
    answer = await suite.client.post("Tokenize", {"model": "fake", "prompt": "hé"})
    assert (answer.status, answer.content_type) == (200, "application/json")
    tokens = [BOS, *"hé".encode()]
    assert answer.json == {"count": 4, "max_model_len": 1024, "tokens": tokens, "token_strs": None}
    body = {"prompt": "hé", "add_special_tokens": False, "return_token_strs": True}
    answer = await suite.client.post("Tokenize", body)
    assert answer.json["tokens"] == tokens[1:]
    assert answer.json["token_strs"] == ["h", "\ufffd", "\ufffd"]
    assert suite.scheduler.submits == []


async def test_tokens_of_messages(suite: Any) -> None:
    """A conversation goes through the template with its options; special tokens are put before it only if asked for."""
    body = {"messages": MESSAGES, "continue_final_message": True, "chat_template_kwargs": {"deep": 1}}
    answer = await suite.client.post("Tokenize", body)
    assert answer.json["tokens"] == list(b"user: hi\n")
    _, rendered = suite.tokenizer.rendered[0]
    assert (rendered.add_generation_prompt, rendered.continue_final_message) == (False, True)
    assert rendered.template_kwargs_json == '{"deep": 1}'
    answer = await suite.client.post("Tokenize", {"messages": MESSAGES, "add_special_tokens": True})
    assert answer.json["tokens"] == [BOS, *b"user: hi\n"]


async def test_tools_are_in_the_prompt_as_a_chat_has_them(serve: Callable[..., Any]) -> None:
    """The count of messages with tools is the prompt's of the chat completion with the same body."""
    template = "{% for tool in tools %}<tool_call>{% endfor %}"
    suite = await serve("ok", template)
    body = {"messages": MESSAGES, "tools": [TOOL]}
    counted = await suite.client.post("Tokenize", body)
    ran = await suite.client.post("ChatCompletions", body)
    assert counted.json["count"] == ran.json["usage"]["prompt_tokens"]
    (_, first), (_, second) = suite.tokenizer.rendered
    assert first.tools_json and first == second


async def test_a_model_of_vectors_has_tokens_too(make_suite: Callable[..., Any]) -> None:
    """What only makes embeddings tokenises prompts and messages; render needs a model that generates."""
    suite = await make_suite([FakeScheduler(tasks=[model_pb2.MODEL_TASK_EMBED])])
    assert (await suite.client.post("Tokenize", {"prompt": "a"})).json["tokens"] == [BOS, 97]
    answer = await suite.client.post("Tokenize", {"messages": MESSAGES, "tools": [TOOL]})
    assert answer.json["count"] == 9
    assert "look" in suite.tokenizer.rendered[0][1].tools_json[0]
    assert (await suite.client.post("RenderCompletion", {"prompt": "a"})).status in (400, 404)


async def test_detokenize(suite: Any) -> None:
    """Tokens make the text that they were made of; none make none."""
    tokens = (await suite.client.post("Tokenize", {"prompt": "hé 🙂", "add_special_tokens": False})).json[
        "tokens"
    ]
    answer = await suite.client.post("Detokenize", {"model": "fake", "tokens": tokens})
    assert (answer.status, answer.json) == (200, {"prompt": "hé 🙂"})
    assert (await suite.client.post("Detokenize", {"tokens": []})).json == {"prompt": ""}


@pytest.mark.parametrize(
    ("method", "body", "parameter", "words"),
    [
        ("Tokenize", {}, "prompt", "exactly one of prompt and messages"),
        ("Tokenize", {"prompt": "a", "messages": MESSAGES}, "prompt", "exactly one"),
        ("Tokenize", {"prompt": ["a"]}, "prompt", "string"),
        ("Tokenize", {"prompt": "x" * 10_001}, "prompt", "10000 characters"),
        ("Tokenize", {"prompt": "a", "tools": [TOOL]}, "tools", "only allowed with messages"),
        ("Tokenize", {"prompt": "a", "temperature": 1}, "temperature", "Unrecognized"),
        ("Tokenize", {"prompt": "a", "mm_processor_kwargs": {"a": 1}}, "mm_processor_kwargs", "not supported"),
        ("Tokenize", {"messages": []}, "messages", "must not be empty"),
        ("Tokenize", {"messages": [{"role": "user"}]}, "messages[0].content", "needs content"),
        ("Tokenize", {"messages": MESSAGES, "chat_template": "x"}, "chat_template", "takes none"),
        ("Tokenize", {"messages": MESSAGES, "chat_template_kwargs": {"messages": 1}}, "chat_template_kwargs", ""),
        (
            "Tokenize",
            {"messages": MESSAGES, "add_generation_prompt": True, "continue_final_message": True},
            "continue_final_message",
            "excludes",
        ),
        ("Detokenize", {}, "tokens", "Missing"),
        ("Detokenize", {"tokens": "a"}, "tokens", "list"),
        ("Detokenize", {"tokens": [1, -1]}, "tokens", "0 to 257, got -1"),
        ("Detokenize", {"tokens": [258]}, "tokens", "0 to 257, got 258"),
        ("Detokenize", {"tokens": [1], "skip": 1}, "skip", "Unrecognized"),
        ("RenderChatCompletion", {"messages": MESSAGES, "top_logprobs": 1}, "top_logprobs", "logprobs"),
        ("RenderCompletion", {"prompt": "a", "temperature": -1}, "temperature", "-1"),
        ("RenderCompletion", {"prompt": "a" * 2000}, "prompt", "maximum context length is 1024"),
    ],
)  # fmt: skip
async def test_refusals_name_the_parameter(
    suite: Any, method: str, body: dict[str, Any], parameter: str, words: str
) -> None:
    """What is missing, malformed, out of range or unknown is a 400 in OpenAI's shape that says which."""
    answer = await suite.client.post(method, body)
    error = answer.json["error"]
    assert (answer.status, error["type"]) == (400, "invalid_request_error")
    assert error["param"] == parameter and words in error["message"]


@pytest.mark.parametrize("method", ["Tokenize", "Detokenize", "RenderChatCompletion", "RenderCompletion"])
async def test_an_unknown_model_is_a_404(suite: Any, method: str) -> None:
    """As at the other endpoints; a body that is no JSON is a 400."""
    prompt = {"messages": MESSAGES} if "Chat" in method else {"prompt": "a"}
    body = {"model": "nope", **({"tokens": [1]} if method == "Detokenize" else prompt)}
    answer = await suite.client.post(method, body)
    assert (answer.status, answer.json["error"]["code"]) == (404, "model_not_found")
    assert (await suite.client.post(method, b"{")).json["error"]["code"] == "invalid_json"


async def test_a_template_of_the_request(make_suite: Callable[..., Any]) -> None:
    """Where the operator trusts templates of requests, tokenize takes one."""
    suite = await make_suite(trust_request_chat_template=True)
    answer = await suite.client.post("Tokenize", {"messages": MESSAGES, "chat_template": "mine"})
    assert answer.status == 200
    assert suite.tokenizer.rendered[0][1].chat_template == "mine"


async def test_render_is_what_runs(suite: Any) -> None:
    """The prompts of both kinds of completions are those that the engine gets for the same body, cut as they are."""
    chat = {"messages": MESSAGES, "max_tokens": 3, "truncate_prompt_tokens": 5}
    answer = await suite.client.post("RenderChatCompletion", chat)
    assert answer.json["model"] == "fake"
    assert suite.scheduler.submits == []
    await suite.client.post("ChatCompletions", chat)
    assert answer.json["token_ids"] == list(suite.scheduler.submits[0].prompt_token_ids) == list(b": hi\n")
    plain = {"prompt": ["a", "bc"], "max_tokens": 3}
    answer = await suite.client.post("RenderCompletion", plain)
    await suite.client.post("Completions", plain)
    ran = [list(submit.prompt_token_ids) for submit in suite.scheduler.submits[1:]]
    assert [prompt["token_ids"] for prompt in answer.json] == ran == [[BOS, 97], [BOS, 98, 99]]
    assert [prompt["prompt"] for prompt in answer.json] == ["a", "bc"]
    answer = await suite.client.post("RenderCompletion", {"prompt": [97, 98]})
    assert answer.json == [{"model": "fake", "token_ids": [97, 98], "prompt": "ab"}]


async def test_special_tokens_stay_in_the_text(make_suite: Callable[..., Any]) -> None:
    """Detokenize leaves nothing out: the tokenizer is asked for special tokens too."""
    tokenizer = FakeTokenizer()
    seen: list[Any] = []
    decode = tokenizer.Decode

    async def spy(request: Any, context: Any) -> Any:
        seen.append(request)
        return await decode(request, context)

    tokenizer.Decode = spy  # type: ignore[method-assign]
    suite = await make_suite(None, [tokenizer])
    await suite.client.post("Detokenize", {"tokens": [97, EOS]})
    assert seen[0].skip_special_tokens is False and seen[0].HasField("skip_special_tokens")


_JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-3, 300), st.floats(allow_nan=False), st.text(max_size=6)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(["role", "content", "type", "function", "name"]), inner, max_size=3),
    ),
    max_leaves=8,
)  # fmt: skip
_BODIES = st.dictionaries(
    st.sampled_from(
        ["model", "prompt", "messages", "tokens", "tools", "add_special_tokens", "return_token_strs",
         "chat_template_kwargs", "continue_final_message", "add_generation_prompt", "other"]
    ),
    _JSON,
    max_size=3,
)  # fmt: skip
_SETTINGS = settings(
    max_examples=100,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@_SETTINGS
@given(body=_BODIES, base=st.sampled_from([{}, {"prompt": "a"}, {"messages": MESSAGES}, {"tokens": [1]}]))
async def test_any_body(suite: Any, body: Any, base: Any) -> None:
    """Every body gets an answer or an error in OpenAI's shape, never a 500."""
    for method in ("Tokenize", "Detokenize", "RenderChatCompletion", "RenderCompletion"):
        answer = await suite.client.post(method, base | body)
        assert answer.status in (200, 400, 404), answer.body
        if answer.status != 200:
            assert set(answer.json["error"]) == {"message", "type", "param", "code"}
