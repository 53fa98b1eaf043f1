"""quire.inference.v1's Chat: requests to domain data, events to messages."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

from quire.inference.v1 import chat_completion_pb2, generate_pb2
from quire_gateway.chat.call import ChatCall, ReasoningOptions, ToolChoice, ToolMode
from quire_gateway.chat.events import (
    ChatEvent,
    ChatFinish,
    ChoiceFinished,
    ReasoningDelta,
    TextDelta,
    TokensSampled,
    ToolArgumentsDelta,
    ToolCallFinished,
    ToolCallStarted,
)
from quire_gateway.chat.runner import ChatRunner
from quire_gateway.chat.stream import ChatStream
from quire_gateway.native_requests import generation_request, tools_of
from quire_gateway.requests import CallInfo
from quire_gateway.servicers.generation_events import prompt_logprobs_event, started_event
from quire_servicekit.errors import InvalidRequest

Response = chat_completion_pb2.ChatResponse

#: What this dialect calls the domain's fields.
_NAMES = {
    "prompt": "generation.chat",
    "tools": "generation.chat.tool_definitions",
    "tool_choice": "tool_choice",
    "reasoning_effort": "reasoning.effort",
    "thinking_token_budget": "reasoning.max_tokens",
}
_MODES = {
    chat_completion_pb2.TOOL_MODE_UNSPECIFIED: ToolMode.AUTO,
    chat_completion_pb2.TOOL_MODE_NONE: ToolMode.NONE,
    chat_completion_pb2.TOOL_MODE_AUTO: ToolMode.AUTO,
    chat_completion_pb2.TOOL_MODE_REQUIRED: ToolMode.REQUIRED,
    chat_completion_pb2.TOOL_MODE_NAMED: ToolMode.NAMED,
}
_FINISHES = {
    ChatFinish.STOP: chat_completion_pb2.CHAT_FINISH_REASON_STOP,
    ChatFinish.LENGTH: chat_completion_pb2.CHAT_FINISH_REASON_LENGTH,
    ChatFinish.TOOL_CALLS: chat_completion_pb2.CHAT_FINISH_REASON_TOOL_CALLS,
}
TokenWriter = Callable[[TokensSampled], generate_pb2.Delta]


def chat_call(message: chat_completion_pb2.ChatRequest) -> ChatCall:
    """ChatRequest in domain words."""
    generation = message.generation
    if generation.WhichOneof("input") != "chat":
        raise InvalidRequest("generation.chat", message="generation.chat is missing")
    if generation.HasField("detokenize") and not generation.detokenize:
        raise InvalidRequest("generation.detokenize", "true: a chat is text", "false")
    if message.tool_choice.mode not in _MODES:
        raise InvalidRequest("tool_choice.mode", "a value of ToolMode", message.tool_choice.mode)
    options = message.reasoning
    has_scores = generation.sampling.HasField("num_logprobs") or bool(generation.sampling.logprob_token_ids)
    return ChatCall(
        request=generation_request(generation),
        tools=tools_of(generation.chat),
        tool_choice=ToolChoice(_MODES[message.tool_choice.mode], message.tool_choice.name),
        has_parallel_calls=message.parallel_tool_calls if message.HasField("parallel_tool_calls") else True,
        reasoning=ReasoningOptions(
            effort=options.effort or None,
            is_included=options.include if options.HasField("include") else True,
            max_tokens=options.max_tokens if options.HasField("max_tokens") else None,
        ),
        wants_tokens=message.return_tokens if message.HasField("return_tokens") else has_scores,
    )


async def answer_chat(
    runner: ChatRunner,
    message: chat_completion_pb2.ChatRequest,
    call: CallInfo,
    *,
    accept_grace_s: float,
    write_tokens: TokenWriter,
) -> AsyncIterator[Response]:
    """The messages of a call."""
    with runner.generator.reading("chat_typed", call):
        chat = chat_call(message)
    async with runner.run(chat, call, route="chat_typed", names=_NAMES) as stream:
        await stream.wait_accepted(accept_grace_s)
        generation, generator = message.generation, runner.generator
        yield Response(started=await started_event(generator, generation, stream.generation))
        wants_scores = generation.sampling.HasField("num_prompt_logprobs")
        async for events in stream.events():
            if wants_scores:
                wants_scores = False
                info = generator.tokenizer.info
                vocabulary = info.vocabulary if info is not None else ()
                yield Response(prompt_logprobs=prompt_logprobs_event(stream.generation, vocabulary))
            for event in events:
                yield _response(event, write_tokens)
        yield Response(completed=generate_pb2.Completed(usage=_usage(stream)))


def _usage(stream: ChatStream) -> generate_pb2.Usage:
    usage = stream.usage
    return generate_pb2.Usage(
        num_prompt_tokens=usage.num_prompt_tokens,
        num_output_tokens=usage.num_output_tokens,
        num_cached_tokens=usage.num_cached_tokens,
        num_reasoning_tokens=usage.num_reasoning_tokens,
    )


def _response(event: ChatEvent, write_tokens: TokenWriter) -> Response:
    if isinstance(event, TokensSampled):
        return Response(tokens=write_tokens(event))
    if isinstance(event, ChoiceFinished):
        return Response(
            choice_finished=chat_completion_pb2.ChoiceFinished(
                choice_index=event.choice_index,
                finish_reason=_FINISHES[event.reason],
                stop_text=event.stop_text,
                stop_token_id=event.stop_token_id,
            )
        )
    # The other messages have the events' own fields.
    name, message_class = _MESSAGES[type(event)]
    return Response(**{name: message_class(**event._asdict())})


_MESSAGES: dict[type, tuple[str, Any]] = {
    TextDelta: ("text", chat_completion_pb2.TextDelta),
    ReasoningDelta: ("reasoning", chat_completion_pb2.ReasoningDelta),
    ToolCallStarted: ("tool_call_started", chat_completion_pb2.ToolCallStarted),
    ToolArgumentsDelta: ("tool_arguments", chat_completion_pb2.ToolArgumentsDelta),
    ToolCallFinished: ("tool_call_finished", chat_completion_pb2.ToolCallFinished),
}
