"""The typed Chat, on fakes: the same events as messages, and refusals by name."""

import json
from typing import Any

import grpc
import pytest
from gateway_chats import THINKING, THOUGHT, WEATHER

from quire.inference.v1 import chat_completion_pb2, chat_pb2, generate_pb2
from quire.sampling.v1 import sampling_pb2


def chat_request(**options: Any) -> chat_completion_pb2.ChatRequest:
    """A typed chat with the two tools."""
    tools = [
        chat_pb2.Tool(name="get_weather", parameters_json=json.dumps(WEATHER["function"]["parameters"])),
        chat_pb2.Tool(name="now"),
    ]
    chat = chat_pb2.Chat(messages=[chat_pb2.ChatMessage(role="user", content="hi")], tool_definitions=tools)
    return chat_completion_pb2.ChatRequest(generation=generate_pb2.GenerateRequest(chat=chat), **options)


async def test_the_typed_chat_tells_the_same_events(serve):
    """Chat streams reasoning, text and calls as typed events, then why each choice ended, and the usage."""
    suite = await serve(THOUGHT, THINKING)
    events = [response async for response in suite.client.inference.Chat(chat_request())]
    kinds = [event.WhichOneof("event") for event in events]
    assert kinds[0] == "started" and kinds[-2:] == ["choice_finished", "completed"]
    assert "".join(e.reasoning.text for e in events) == "I could say END.\n<tool_call>no</tool_call>"
    assert "".join(e.text.text for e in events) == "I look.\n"
    assert [e.tool_call_started.name for e in events if e.HasField("tool_call_started")] == [
        "get_weather",
        "now",
    ]
    first = [
        e.tool_arguments.text
        for e in events
        if e.HasField("tool_arguments") and not e.tool_arguments.call_index
    ]
    assert "".join(first) == '{"city": "Paris"}'
    assert kinds.count("tool_call_finished") == 2
    assert events[-2].choice_finished.finish_reason == chat_completion_pb2.CHAT_FINISH_REASON_TOOL_CALLS
    usage = events[-1].completed.usage
    assert 0 < usage.num_reasoning_tokens < usage.num_output_tokens


async def test_the_typed_chat_gives_tokens_on_request(serve):
    """With return_tokens every output token comes in a tokens event."""
    suite = await serve(THOUGHT, THINKING)
    events = [r async for r in suite.client.inference.Chat(chat_request(return_tokens=True))]
    assert sum(len(event.tokens.token_ids) for event in events) == len(THOUGHT) + 1
    request = chat_request()
    request.generation.sampling.num_logprobs = 1
    events = [response async for response in suite.client.inference.Chat(request)]
    assert sum(len(event.tokens.logprobs) for event in events) == len(THOUGHT) + 1


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda r: r.generation.ClearField("chat"), "generation.chat"),
        (lambda r: setattr(r.tool_choice, "mode", 4), "tool_choice"),
        (lambda r: setattr(r.generation, "detokenize", False), "generation.detokenize"),
        (lambda r: setattr(r.generation.chat.tool_definitions[0], "parameters_json", "{"), "parameters_json"),
        (lambda r: r.generation.chat.tools.add(), "chat.tools"),
        (lambda r: setattr(r.reasoning, "max_tokens", 1), "reasoning.max_tokens"),
    ],
)
async def test_the_typed_chat_refuses_by_name(serve, change, field):
    """What a typed chat cannot have is INVALID_ARGUMENT naming the field."""
    suite = await serve("Hi")
    request = chat_request()
    change(request)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        _ = [response async for response in suite.client.inference.Chat(request)]
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert field in refused.value.details()


async def test_tools_of_generate_keep_their_order(serve):
    """Generate and Tokenize render tool_definitions and calls as they were written."""
    suite = await serve("Hi")
    request = chat_request().generation
    call = chat_pb2.ToolCall(id="1", name="now", arguments_json='{"z": 1, "a": 2}')
    request.chat.messages.add(role="assistant", calls=[call])
    request.sampling.CopyFrom(sampling_pb2.SamplingParams(max_tokens=2))
    _ = [response async for response in suite.client.inference.Generate(request)]
    messages, rendered = suite.tokenizer.rendered[-1]
    assert list(messages[-1]["tool_calls"][0]["function"]["arguments"]) == ["z", "a"]
    assert [json.loads(tool)["function"]["name"] for tool in rendered.tools_json] == ["get_weather", "now"]
