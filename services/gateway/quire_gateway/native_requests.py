"""quire.inference.v1 requests to domain data.

One job: translate, and refuse by name what is not served yet.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import json_format

from quire.inference.v1 import chat_pb2, generate_pb2
from quire_gateway.requests import ChatPrompt, GenerationRequest, Prompt, TextPrompt, TokenPrompt
from quire_gateway.sequences import WakeOn
from quire_gateway.wire import sampling_of
from quire_servicekit.errors import InvalidRequest, Unsupported


def generation_request(message: generate_pb2.GenerateRequest) -> GenerationRequest:
    """GenerateRequest in domain words."""
    if message.sampling.HasField("num_prompt_logprobs"):
        raise Unsupported("sampling.num_prompt_logprobs")
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
    )


def field_names(message: generate_pb2.GenerateRequest) -> dict[str, str]:
    """What this dialect calls the domain's fields."""
    return {"prompt": message.WhichOneof("input") or "input"}


def chat_prompt(chat: chat_pb2.Chat) -> ChatPrompt:
    """Chat in domain words."""
    return ChatPrompt(
        tuple(_message_of(message) for message in chat.messages),
        tools=tuple(_plain(tool) for tool in chat.tools),
        add_generation_prompt=chat.add_generation_prompt if chat.HasField("add_generation_prompt") else None,
        continue_final_message=chat.continue_final_message
        if chat.HasField("continue_final_message")
        else None,
        template_kwargs=_plain(chat.template_kwargs),
    )


def _prompt_of(message: generate_pb2.GenerateRequest) -> Prompt:
    kind = message.WhichOneof("input")
    if kind == "text":
        return TextPrompt(message.text)
    if kind == "token_ids":
        return TokenPrompt(tuple(message.token_ids.ids))
    if kind == "chat":
        return chat_prompt(message.chat)
    raise InvalidRequest("input", message="input is missing: set one of text, token_ids and chat")


def _message_of(message: chat_pb2.ChatMessage) -> dict[str, Any]:
    rendered: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.name:
        rendered["name"] = message.name
    if message.tool_calls:
        rendered["tool_calls"] = [_plain(call) for call in message.tool_calls]
    if message.tool_call_id:
        rendered["tool_call_id"] = message.tool_call_id
    return rendered


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
