"""What the OpenAI dialect takes, and how it says no."""

from __future__ import annotations

import json
from typing import Any

import pytest

from quire_gateway.openai.answers import error_body, error_head, kind_of
from quire_gateway.openai.chat_request import ChatRequest
from quire_gateway.openai.completion_request import CompletionRequest
from quire_gateway.openai.options import named_call
from quire_gateway.openai.parameters import NEUTRAL, UNSUPPORTED, parse
from quire_gateway.requests import (
    BeamSearch,
    CallInfo,
    ChatPrompt,
    TextPrompt,
    TokenPrompt,
    Truncation,
    TruncationSide,
)
from quire_servicekit import errors

_MESSAGES = [{"role": "user", "content": "hi"}]


def _chat(**options: Any) -> ChatRequest:
    return parse(json.dumps({"messages": _MESSAGES, **options}).encode(), ChatRequest)


def _completion(**options: Any) -> CompletionRequest:
    return parse(json.dumps({"prompt": "hi", **options}).encode(), CompletionRequest)


def test_every_sampling_parameter_reaches_the_domain() -> None:
    """Each supported parameter has its counterpart, with presence."""
    request = _chat(
        temperature=0, top_p=0.5, presence_penalty=1, frequency_penalty=-1, seed=5, n=2, stop=["a", "b"],
        logit_bias={"7": 1.5}, logprobs=True, top_logprobs=3, max_tokens=9, top_k=4, min_p=0.1,
        repetition_penalty=1.1, min_tokens=2, ignore_eos=True, stop_token_ids=[3], allowed_token_ids=[1, 2],
        include_stop_str_in_output=True, skip_special_tokens=False, cache_salt="s", priority=-3,
        chat_template_kwargs={"enable_thinking": False}, add_generation_prompt=True, model="m",
    ).to_generation()  # fmt: skip
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_p, sampling.seed, sampling.top_k) == (0, 0.5, 5, 4)
    assert (sampling.presence_penalty, sampling.frequency_penalty, sampling.repetition_penalty) == (
        1,
        -1,
        1.1,
    )
    assert (sampling.min_p, sampling.min_tokens, sampling.max_tokens, sampling.ignore_eos) == (
        0.1,
        2,
        9,
        True,
    )
    assert (sampling.num_logprobs, sampling.logit_bias) == (3, {7: 1.5})
    assert (sampling.stop_token_ids, sampling.allowed_token_ids) == ((3,), (1, 2))
    assert (request.n, request.stop, request.model, request.priority) == (2, ("a", "b"), "m", -3)
    assert (request.include_stop_text, request.skip_special_tokens, request.cache_salt) == (True, False, "s")
    assert isinstance(request.prompt, ChatPrompt)
    assert request.prompt.template_kwargs == {"enable_thinking": False}
    assert request.prompt.add_generation_prompt is True


def test_unset_and_null_are_the_same_and_not_zero() -> None:
    """A parameter that is null is unset, which is another thing than 0."""
    unset = _chat(temperature=None, max_tokens=None, stop=None, tools=None).to_generation().sampling
    assert unset.temperature is None and unset.max_tokens is None
    assert _chat(temperature=0).to_generation().sampling.temperature == 0


@pytest.mark.parametrize("name", sorted(UNSUPPORTED - set(ChatRequest.model_fields)))
def test_a_known_parameter_that_is_not_served_is_refused_by_name(name: str) -> None:
    """Nothing known is ignored: the error has the parameter's name."""
    with pytest.raises(errors.Unsupported) as refused:
        _chat(**{name: {"some": "value"}})
    assert refused.value.parameter == name


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in NEUTRAL.items() for value in values]
)
def test_values_that_ask_for_nothing_are_accepted(name: str, value: Any) -> None:
    """Clients that spell out defaults are not turned away."""
    assert _chat(**{name: value}).messages


def test_a_neutral_number_is_not_a_boolean() -> None:
    """best_of 1 is the default; true is nonsense, though Python calls them equal."""
    with pytest.raises(errors.Unsupported, match=r"it may be 1"):
        _chat(best_of=True)


def test_labels_are_accepted() -> None:
    """Labels for the caller's own use change nothing."""
    assert _chat(user="u", metadata={"a": "b"}, safety_identifier="s", prompt_cache_key="k").messages


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({"messages": _MESSAGES, "frequency": 1}, "frequency", "unknown_parameter"),
        ({"messages": _MESSAGES, "temperature": "hot"}, "temperature", "invalid_type"),
        ({"messages": _MESSAGES, "n": 1.5}, "n", "invalid_type"),
        ({"messages": _MESSAGES, "n": True}, "n", "invalid_type"),
        ({"messages": _MESSAGES, "stop": [1]}, "stop[0]", "invalid_type"),
        ({"messages": _MESSAGES, "stream": "yes"}, "stream", "invalid_type"),
        ({"messages": _MESSAGES, "stream_options": {"include_usage": True}}, "stream_options", "invalid_value"),
        ({"messages": _MESSAGES, "stream": True, "stream_options": {"x": 1}}, "stream_options.x", "unknown_parameter"),
        ({"messages": _MESSAGES, "stream_options": {"x-y": 1}}, "stream_options.x-y", "unknown_parameter"),
        ({"messages": _MESSAGES, "top_logprobs": 3}, "top_logprobs", "invalid_value"),
        ({"messages": _MESSAGES, "logit_bias": {"a": 1}}, "logit_bias", "invalid_value"),
        ({"messages": []}, "messages", "invalid_type"),
        ({}, "messages", "missing_required_parameter"),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "invalid_value"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role", "invalid_type"),
        ({"messages": [{"role": "user", "content": "x", "y": 1}]}, "messages[0].y", "unknown_parameter"),
        (
            {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
            "messages[0].content[0].text",
            "invalid_value",
        ),
        (
            {"messages": _MESSAGES, "continue_final_message": True, "add_generation_prompt": True},
            "continue_final_message",
            "invalid_value",
        ),
    ],
)  # fmt: skip
def test_malformed_chat_requests_name_what_is_wrong(body: dict[str, Any], param: str, code: str) -> None:
    """Type, structure and unknown names are 400 with `param` and `code`."""
    with pytest.raises(errors.InvalidRequest) as refused:
        parse(json.dumps(body).encode(), ChatRequest).to_generation()
    answer = json.loads(error_body(refused.value))["error"]
    assert (answer["param"], answer["code"], answer["type"]) == (param, code, "invalid_request_error")
    assert error_head(refused.value).status == 400


def test_a_message_that_a_client_got_can_be_sent_back_whole() -> None:
    """Keys of messages and options that are null are unset, known or not: clients dump them all."""
    unused = dict.fromkeys(("refusal", "annotations", "audio", "function_call", "tool_calls", "name"))
    answer = {"role": "assistant", "content": "hello", **unused}
    request = _chat(messages=[*_MESSAGES, answer], stream=True, stream_options={"include_usage": None})
    prompt = request.to_generation().prompt
    assert isinstance(prompt, ChatPrompt)
    assert dict(prompt.messages[1]) == {"role": "assistant", "content": "hello"}
    assert request.options.include_usage is False


def test_what_is_no_number_is_told_that_a_number_is_wanted() -> None:
    """Not that a whole number is."""
    for options in ({"temperature": "hot"}, {"top_p": True}, {"logit_bias": {"1": "x"}}):
        with pytest.raises(errors.InvalidRequest, match="valid number"):
            _chat(**options)


def test_a_request_id_is_bounded() -> None:
    """It stands in the logs, so it may not be as long as a body."""
    request = _chat(request_id="a" * 256)
    assert named_call(request, CallInfo()).client_request_id == "a" * 256
    with pytest.raises(errors.InvalidRequest, match="request_id must be at most 256 characters, got 257"):
        named_call(_chat(request_id="a" * 257), CallInfo())


@pytest.mark.parametrize("body", [b"", b"{", b"[1]", b'"x"', b"\xff", b'{"messages": "\\ud800"}'])
def test_a_body_that_is_no_json_object_is_400(body: bytes) -> None:
    """Bad JSON, bad UTF-8 and half surrogates are the client's fault, not ours."""
    with pytest.raises(errors.InvalidRequest) as refused:
        parse(body, ChatRequest)
    assert refused.value.code == "invalid_json"


_CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def test_messages_become_what_templates_expect() -> None:
    """Text parts are joined, developer is system, tool messages keep their ids; other content is refused by place."""
    request = parse(
        json.dumps(
            {
                "messages": [
                    {"role": "developer", "content": "be brief"},
                    {
                        "role": "user",
                        "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
                    },
                    {"role": "assistant", "content": None, "tool_calls": [_CALL]},
                    {"role": "tool", "content": "42", "tool_call_id": "1", "name": "f"},
                ]
            }
        ).encode(),
        ChatRequest,
    )
    prompt = request.to_generation().prompt
    assert isinstance(prompt, ChatPrompt)
    assert [dict(message) for message in prompt.messages] == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "a\nb"},
        {"role": "assistant", "content": "", "tool_calls": [_CALL]},
        {"role": "tool", "content": "42", "name": "f", "tool_call_id": "1"},
    ]
    image = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]
    with pytest.raises(errors.Unsupported) as refused:
        _chat(messages=image).to_generation()
    assert refused.value.parameter == "messages[0].content[0].type"


def test_max_completion_tokens_counts_before_max_tokens() -> None:
    """The newer name wins, and errors use the name that was given."""
    request = _chat(max_completion_tokens=5, max_tokens=9)
    assert request.to_generation().sampling.max_tokens == 5
    assert request.names["max_tokens"] == "max_completion_tokens"


def test_a_negative_seed_is_the_same_bits_unsigned() -> None:
    """OpenAI's seeds are signed; each has one unsigned counterpart."""
    assert _chat(seed=-1).to_generation().sampling.seed == 2**64 - 1


def test_continuing_a_message_takes_no_generation_prompt() -> None:
    """continue_final_message switches the header of a new message off."""
    prompt = _chat(continue_final_message=True).to_generation().prompt
    assert isinstance(prompt, ChatPrompt)
    assert (prompt.continue_final_message, prompt.add_generation_prompt) == (True, False)


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("a", [TextPrompt("a")]),
        (["a", "b"], [TextPrompt("a"), TextPrompt("b")]),
        ([1, 2], [TokenPrompt((1, 2))]),
        ([[1], [2, 3]], [TokenPrompt((1,)), TokenPrompt((2, 3))]),
    ],
)
def test_all_four_forms_of_prompt(prompt: Any, expected: list[Any]) -> None:
    """One or several prompts, as text or as token ids."""
    assert _completion(prompt=prompt).prompts() == expected


@pytest.mark.parametrize("prompt", [[], [-1], ["x"] * 129, [["a"]], {"a": 1}, [1, "a"]])
def test_prompts_that_are_none_are_refused(prompt: Any) -> None:
    """Empty, negative, too many, or of no known form."""
    with pytest.raises(errors.InvalidRequest) as refused:
        _completion(prompt=prompt).to_generations()
    assert refused.value.field.startswith("prompt")


def test_completions_have_openais_default_length() -> None:
    """16 tokens unless the request says otherwise; min_tokens above that lifts it."""
    assert _completion().to_generations()[0].sampling.max_tokens == 16
    assert _completion(min_tokens=20).to_generations()[0].sampling.max_tokens == 20
    assert _completion(max_tokens=3).to_generations()[0].sampling.max_tokens == 3


def test_echo_with_logprobs_scores_the_prompt() -> None:
    """An echoed prompt has as many log-probabilities as the output, unless prompt_logprobs says otherwise."""
    assert _completion(echo=True, logprobs=1).to_generations()[0].sampling.num_prompt_logprobs == 1
    both = _completion(echo=True, logprobs=1, prompt_logprobs=0).to_generations()[0].sampling
    assert (both.num_logprobs, both.num_prompt_logprobs) == (1, 0)
    assert _completion(echo=True).to_generations()[0].sampling.num_prompt_logprobs is None


def test_extras_reach_the_domain() -> None:
    """Each further parameter has its counterpart in the request of both endpoints."""
    extras: dict[str, Any] = {
        "bad_words": ["no"], "truncate_prompt_tokens": 5, "truncation_side": "right", "session_id": "s1",
        "skip_reading_prefix_cache": True, "logprob_token_ids": [4, 2],
    }  # fmt: skip
    for request in (
        _chat(logprobs=True, **extras).to_generation(),
        _completion(**extras).to_generations()[0],
    ):
        assert (request.bad_words, request.session_id) == (("no",), "s1")
        assert request.truncation == Truncation(max_tokens=5, side=TruncationSide.RIGHT)
        assert request.skip_reading_prefix_cache and request.beam_search is None
        assert (request.sampling.logprob_token_ids, request.sampling.num_logprobs) == ((4, 2), None)
    assert _chat(truncate_prompt_tokens=-1).to_generation().truncation == Truncation()
    beams = _completion(use_beam_search=True, length_penalty=2, n=3).to_generations()[0]
    assert (beams.beam_search, beams.n) == (BeamSearch(length_penalty=2.0), 3)
    assert _chat(stream=True, stream_interval=4).to_generation().stream_interval == 4
    prompt = _chat(chat_template="{{ x }}", documents=[{"text": "d"}]).to_generation().prompt
    assert isinstance(prompt, ChatPrompt)
    assert (prompt.chat_template, prompt.documents) == ("{{ x }}", ({"text": "d"},))


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (errors.InvalidRequest("n", "at least 1", 0), 400, "invalid_value"),
        (errors.Unsupported("tools"), 400, "unsupported_parameter"),
        (errors.Unauthenticated(), 401, "invalid_api_key"),
        (errors.PermissionDenied(), 403, "permission_denied"),
        (errors.UnknownModel("x"), 404, "model_not_found"),
        (errors.UnknownRequest("x"), 404, "not_found"),
        (errors.QueueFull(2.4), 429, "rate_limit_exceeded"),
        (errors.InternalError("secret"), 500, "internal_error"),
        (KeyError("secret"), 500, "internal_error"),
        (errors.WorkerLost(), 503, "unavailable"),
        (errors.DeadlineExceeded(), 504, "deadline_exceeded"),
    ],
)
def test_every_cause_has_its_status_and_code(error: Exception, status: int, code: str) -> None:
    """The dialect's shape for each cause; bugs say nothing about themselves."""
    assert kind_of(error).status == status
    body = json.loads(error_body(error))["error"]
    assert set(body) == {"message", "type", "param", "code"}
    assert body["code"] == code
    assert "secret" not in body["message"]


def test_retry_after_is_a_whole_number_of_seconds_and_never_zero() -> None:
    """The header says when to come back: rounded up, so that a client that obeys is never early."""
    assert error_head(errors.QueueFull(2.4)).retry_after_s == 3
    assert error_head(errors.QueueFull(0.1)).retry_after_s == 1
    assert error_head(errors.UnknownModel("x")).retry_after_s is None


async def test_an_empty_list_of_allowed_ids_is_refused(suite: Any) -> None:
    """Nothing allowed is no request that could be served; it is not taken for unset."""
    answer = await suite.client.complete(allowed_token_ids=[])
    assert answer.status == 400
    assert answer.json["error"]["message"] == "allowed_token_ids must not be empty"
    assert answer.json["error"]["param"] == "allowed_token_ids"
