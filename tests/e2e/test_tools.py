"""Tools as clients meet them: the real openai client and the typed API, on the real model, through the edge."""

import json

import jsonschema
import openai
import pytest

from quire.inference.v1 import (
    chat_completion_pb2,
    chat_pb2,
    generate_pb2,
    inference_service_pb2_grpc,
)
from quire.sampling.v1 import sampling_pb2

pytestmark = pytest.mark.e2e

MODEL = "smollm2-135m-instruct"
SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 30},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
        "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
    },
    "required": ["city", "unit"],
}
WEATHER = {
    "type": "function",
    "function": {"name": "get_weather", "description": "The weather of a city.", "parameters": SCHEMA},
}
NOW = {
    "type": "function",
    "function": {"name": "now", "description": "The time.", "parameters": {"type": "object"}},
}
MESSAGES = [{"role": "user", "content": "What is the weather in Paris?"}]
NAMED = {"type": "function", "function": {"name": "get_weather"}}


@pytest.fixture(scope="module")
def client(smollm2_suite):
    """The real openai client."""
    with smollm2_suite.openai() as opened:
        yield opened


def check(name, arguments):
    """A call has to match its tool's schema."""
    assert name in ("get_weather", "now")
    jsonschema.validate(json.loads(arguments), SCHEMA if name == "get_weather" else {"type": "object"})


@pytest.mark.parametrize("temperature", [0, 1])
@pytest.mark.parametrize("choice", ["required", NAMED])
def test_forced_calls_streamed_and_at_once(client, choice, temperature):
    """required and named choices give calls that match their schemas, the same streamed as at once."""
    options = {
        "model": MODEL, "messages": MESSAGES, "tools": [WEATHER], "tool_choice": choice, "temperature": temperature,
        "seed": 3, "max_tokens": 200, "parallel_tool_calls": False,
    }  # fmt: skip
    answer = client.chat.completions.create(**options).choices[0]
    (call,) = answer.message.tool_calls
    assert answer.finish_reason == "tool_calls"
    assert answer.message.content is None
    assert call.function.name == "get_weather"
    check(call.function.name, call.function.arguments)
    with client.chat.completions.stream(**{**options, "parallel_tool_calls": openai.NOT_GIVEN}) as stream:
        final = stream.get_final_completion().choices[0]
    if choice == NAMED:
        assert [c.function.arguments for c in final.message.tool_calls] == [call.function.arguments]
    for streamed in final.message.tool_calls:
        check(streamed.function.name, streamed.function.arguments)


def test_pieces_of_a_stream_join_to_the_answer(client):
    """Raw chunks: the first of a call has id and name, the others pieces of arguments that join to the whole."""
    options = {
        "model": MODEL, "messages": MESSAGES, "tools": [WEATHER, NOW], "tool_choice": NAMED, "temperature": 0,
        "max_tokens": 200,
    }  # fmt: skip
    whole = client.chat.completions.create(**options).choices[0].message.tool_calls[0]
    pieces = [
        call
        for chunk in client.chat.completions.create(**options, stream=True)
        for call in chunk.choices[0].delta.tool_calls or ()
    ]
    assert pieces[0].id and pieces[0].function.name == "get_weather"
    assert all(piece.id is None and piece.function.name is None for piece in pieces[1:])
    assert "".join(piece.function.arguments for piece in pieces) == whole.function.arguments


def test_a_whole_conversation_with_a_tool(client):
    """A call, its result sent back as the client got it, and an answer to the user."""
    options = {"model": MODEL, "tools": [WEATHER], "temperature": 0, "max_tokens": 200}
    first = client.chat.completions.create(messages=MESSAGES, tool_choice=NAMED, **options).choices[0].message
    (call,) = first.tool_calls
    result = {"role": "tool", "tool_call_id": call.id, "content": '{"temperature": 21, "sky": "clear"}'}
    messages = [*MESSAGES, first.model_dump(), result]
    answer = client.chat.completions.create(messages=messages, tool_choice="none", **options).choices[0]
    assert answer.message.content
    assert answer.message.tool_calls is None
    assert answer.finish_reason in ("stop", "length")


def test_every_choice_of_several_is_bound(client):
    """With n > 1 each choice is constrained and parsed apart."""
    answer = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, tools=[WEATHER, NOW], tool_choice="required", n=3, temperature=1, seed=9,
        max_tokens=250, parallel_tool_calls=False,
    )  # fmt: skip
    for choice in answer.choices:
        assert choice.finish_reason == "tool_calls"
        (call,) = choice.message.tool_calls
        check(call.function.name, call.function.arguments)


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "x"}}}, "tool_choice"),
        ({"extra_body": {"functions": [{"name": "f"}]}}, "functions"),
        ({"reasoning_effort": "high"}, "reasoning_effort"),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(client, options, param):
    """Choices without tools, the legacy functions, and effort on a model that does not think are BadRequestErrors."""
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model=MODEL, messages=MESSAGES, **options)
    assert refused.value.param == param


def test_the_typed_chat_calls_tools(smollm2_suite):
    """The typed Chat over the edge streams the same call as typed events."""
    tool = chat_pb2.Tool(
        name="get_weather", description="The weather of a city.", parameters_json=json.dumps(SCHEMA)
    )
    request = chat_completion_pb2.ChatRequest(
        generation=generate_pb2.GenerateRequest(
            chat=chat_pb2.Chat(
                messages=[chat_pb2.ChatMessage(role="user", content=MESSAGES[0]["content"])],
                tool_definitions=[tool],
            ),
            sampling=sampling_pb2.SamplingParams(temperature=0, max_tokens=200),
        ),
        tool_choice=chat_completion_pb2.ToolChoice(
            mode=chat_completion_pb2.TOOL_MODE_NAMED, name="get_weather"
        ),
    )
    stub = inference_service_pb2_grpc.InferenceStub(smollm2_suite.channel)
    events = list(stub.Chat(request, timeout=120))
    assert [e.tool_call_started.name for e in events if e.HasField("tool_call_started")] == ["get_weather"]
    check("get_weather", "".join(event.tool_arguments.text for event in events))
    assert events[-2].choice_finished.finish_reason == chat_completion_pb2.CHAT_FINISH_REASON_TOOL_CALLS


def test_the_typed_chat_over_rest(smollm2_suite):
    """POST /quire/v1/chat is the same as server-sent events of JSON."""
    import httpx

    body = {
        "generation": {
            "chat": {
                "messages": [{"role": "user", "content": "Hi"}],
                "tool_definitions": [
                    {"name": "now", "parameters_json": '{"type": "object", "properties": {}}'}
                ],
            },
            "sampling": {"temperature": 0, "max_tokens": 60},
        },
        "tool_choice": {"mode": "TOOL_MODE_REQUIRED"},
        "parallel_tool_calls": False,
    }
    answer = httpx.post(f"{smollm2_suite.url}/quire/v1/chat", json=body, timeout=120)
    assert answer.status_code == 200
    events = [
        json.loads(line.removeprefix("data: "))
        for line in answer.text.splitlines()
        if line.startswith("data: ")
    ]
    (call,) = [event["tool_call_started"] for event in events if "tool_call_started" in event]
    assert call["name"] == "now"
    assert events[-1]["completed"]["usage"]["num_output_tokens"] > 0
