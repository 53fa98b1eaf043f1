"""quire.inference.v1 requests to domain data.

One job: translate, and refuse by name what is not served yet.
"""

from __future__ import annotations

from typing import Any

import orjson
from google.protobuf import json_format

from quire.inference.v1 import chat_pb2, generate_pb2
from quire_gateway.chat.call import Tool
from quire_gateway.requests import (
    BeamSearch,
    ChatPrompt,
    GenerationRequest,
    Prompt,
    TextPrompt,
    TokenPrompt,
    Truncation,
    TruncationSide,
)
from quire_gateway.sequences import WakeOn
from quire_gateway.wire import sampling_of
from quire_servicekit.errors import InvalidRequest


def generation_request(message: generate_pb2.GenerateRequest) -> GenerationRequest:
    """GenerateRequest in domain words."""
    return GenerationRequest(
        prompt=_prompt_of(message),
        model=message.model,
        sampling=sampling_of(message.sampling),
        stop=tuple(message.stop),
        include_stop_text=message.include_stop_text,
        n=message.n if message.HasField("n") else 1,
        skip_special_tokens=message.skip_special_tokens if message.HasField("skip_special_tokens") else True,
        priority=message.priority,
        cache_salt=message.cache_salt,
        detokenize=message.detokenize if message.HasField("detokenize") else True,
        wake_on=WakeOn.TOKENS,
        bad_words=tuple(message.bad_words),
        truncation=_truncation_of(message.truncation) if message.HasField("truncation") else None,
        beam_search=_beam_search_of(message.beam_search) if message.HasField("beam_search") else None,
        session_id=message.session_id,
        skip_reading_prefix_cache=message.skip_reading_prefix_cache,
        stream_interval=message.stream_interval if message.HasField("stream_interval") else 1,
    )


_SIDES = {
    generate_pb2.TRUNCATION_SIDE_UNSPECIFIED: TruncationSide.LEFT,
    generate_pb2.TRUNCATION_SIDE_LEFT: TruncationSide.LEFT,
    generate_pb2.TRUNCATION_SIDE_RIGHT: TruncationSide.RIGHT,
}


def _truncation_of(message: generate_pb2.Truncation) -> Truncation:
    if message.side not in _SIDES:
        raise InvalidRequest("truncation.side", "a value of TruncationSide", message.side)
    length = message.max_tokens if message.HasField("max_tokens") else None
    if length == 0:
        raise InvalidRequest("truncation.max_tokens", "at least 1", 0)
    return Truncation(max_tokens=length, side=_SIDES[message.side])


def _beam_search_of(message: generate_pb2.BeamSearch) -> BeamSearch:
    return BeamSearch(length_penalty=message.length_penalty if message.HasField("length_penalty") else 1.0)


def field_names(message: generate_pb2.GenerateRequest) -> dict[str, str]:
    """What this dialect calls the domain's fields."""
    return {"prompt": message.WhichOneof("input") or "input"}


def chat_prompt(chat: chat_pb2.Chat) -> ChatPrompt:
    """Chat in domain words."""
    return ChatPrompt(
        tuple(_message_of(message, index) for index, message in enumerate(chat.messages)),
        tools=_definitions_of(chat),
        add_generation_prompt=chat.add_generation_prompt if chat.HasField("add_generation_prompt") else None,
        continue_final_message=chat.continue_final_message
        if chat.HasField("continue_final_message")
        else None,
        template_kwargs=_plain(chat.template_kwargs),
        chat_template=chat.chat_template,
        documents=tuple(_json_object(text, "chat.documents_json") for text in chat.documents_json),
    )


def tools_of(chat: chat_pb2.Chat) -> tuple[Tool, ...]:
    """The tools of a chat whose answer may call them."""
    if chat.tools:
        raise InvalidRequest(
            "chat.tools", message="chat.tools is not read by Chat: use chat.tool_definitions"
        )
    return tuple(
        Tool(
            name=tool.name,
            description=tool.description,
            parameters=_json_object(tool.parameters_json, f"chat.tool_definitions[{index}].parameters_json")
            if tool.parameters_json
            else {},
            is_strict=tool.strict,
        )
        for index, tool in enumerate(chat.tool_definitions)
    )


def _definitions_of(chat: chat_pb2.Chat) -> tuple[dict[str, Any], ...]:
    if chat.tools and chat.tool_definitions:
        raise InvalidRequest("chat.tools", message="chat.tools excludes chat.tool_definitions")
    if chat.tools:
        return tuple(_plain(tool) for tool in chat.tools)
    return tuple(tool.definition() for tool in tools_of(chat))


def _json_object(text: str, field: str) -> dict[str, Any]:
    try:
        found = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(field, message=f"{field}: not valid JSON: {error}") from error
    if not isinstance(found, dict):
        raise InvalidRequest(field, "JSON objects", type(found).__name__)
    return found


def _prompt_of(message: generate_pb2.GenerateRequest) -> Prompt:
    kind = message.WhichOneof("input")
    if kind == "text":
        is_special = message.add_special_tokens if message.HasField("add_special_tokens") else True
        return TextPrompt(message.text, is_special)
    if kind == "token_ids":
        return TokenPrompt(tuple(message.token_ids.ids))
    if kind == "chat":
        return chat_prompt(message.chat)
    raise InvalidRequest("input", message="input is missing: set one of text, token_ids and chat")


def _message_of(message: chat_pb2.ChatMessage, index: int) -> dict[str, Any]:
    if message.tool_calls and message.calls:
        field = f"chat.messages[{index}].tool_calls"
        raise InvalidRequest(field, message=f"{field} excludes calls")
    rendered: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.name:
        rendered["name"] = message.name
    if message.tool_calls:
        rendered["tool_calls"] = [_plain(call) for call in message.tool_calls]
    if message.calls:
        rendered["tool_calls"] = [
            {"id": call.id, "type": "function", "function": _function_of(call)} for call in message.calls
        ]
    if message.tool_call_id:
        rendered["tool_call_id"] = message.tool_call_id
    return rendered


def _function_of(call: chat_pb2.ToolCall) -> dict[str, Any]:
    """What was called; templates print arguments as an object, and those that broke off as they are."""
    try:
        arguments = orjson.loads(call.arguments_json or "{}")
    except orjson.JSONDecodeError:
        arguments = call.arguments_json
    return {"name": call.name, "arguments": arguments}


def _plain(struct: Any) -> dict[str, Any]:
    """A Struct as JSON data."""
    return {key: _whole_numbers(value) for key, value in json_format.MessageToDict(struct).items()}


def _whole_numbers(value: Any) -> Any:
    """A Struct knows only floating numbers; whole ones become integers again, as the client wrote them."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_whole_numbers(item) for item in value]
    if isinstance(value, dict):
        return {key: _whole_numbers(item) for key, item in value.items()}
    return value
