"""The messages of a body, as the OpenAI form that chat templates are fed with.

One job: content blocks in, messages out. What a block cannot be is refused by its path and type.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import orjson

from quire_gateway.request_body import StrictModel, read_part
from quire_servicekit.errors import InvalidRequest, Unsupported


class TextBlock(StrictModel):
    """Text."""

    type: Literal["text"]
    text: str
    cache_control: dict[str, Any] | None = None
    citations: list[Any] | None = None


class ThinkingBlock(StrictModel):
    """What the model thought in an earlier turn."""

    type: Literal["thinking"]
    thinking: str
    signature: str = ""


class ToolUseBlock(StrictModel):
    """A call that the model made in an earlier turn."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]
    cache_control: dict[str, Any] | None = None
    caller: dict[str, Any] | None = None
    toolset_name: None = None


class ToolResultBlock(StrictModel):
    """What a call gave."""

    type: Literal["tool_result"]
    tool_use_id: str
    content: str | list[dict[str, Any]] = ""
    is_error: bool = False
    cache_control: dict[str, Any] | None = None
    toolset_name: None = None


Block = TextBlock | ThinkingBlock | ToolUseBlock | ToolResultBlock

#: By role: the blocks that its content may have.
_BLOCKS: dict[str, dict[str, type[Block]]] = {
    "user": {"text": TextBlock, "tool_result": ToolResultBlock},
    "assistant": {"text": TextBlock, "thinking": ThinkingBlock, "tool_use": ToolUseBlock},
    "system": {"text": TextBlock},
}


class Message(StrictModel):
    """One turn, or a part of one: neighbours of the same role are one turn."""

    role: Literal["user", "assistant", "system"]
    content: str | list[dict[str, Any]]


def system_text(system: str | list[dict[str, Any]]) -> str:
    """The system prompt."""
    if isinstance(system, str):
        return system
    return "\n".join(_texts_of(system, "system"))


def openai_messages(system: str, messages: list[Message]) -> list[dict[str, Any]]:
    """The conversation in the OpenAI form. Raises naming the block that is wrong or not supported."""
    written: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []
    for index, message in enumerate(messages):
        for turn in _turns_of(index, message):
            if written and _can_join(written[-1], turn):
                _join(written[-1], turn)
            else:
                written.append(turn)
    return written


def _can_join(last: dict[str, Any], turn: dict[str, Any]) -> bool:
    return bool(last["role"] == turn["role"] != "tool")


def _join(last: dict[str, Any], turn: dict[str, Any]) -> None:
    last["content"] = "\n".join(text for text in (last["content"], turn["content"]) if text)
    for name in ("tool_calls", "reasoning_content"):
        if name in turn:
            last[name] = last[name] + turn[name] if name in last else turn[name]


def _turns_of(index: int, message: Message) -> Iterator[dict[str, Any]]:
    if isinstance(message.content, str):
        yield {"role": message.role, "content": message.content}
        return
    blocks = [
        _block(value, message.role, "messages", index, "content", number)
        for number, value in enumerate(message.content)
    ]
    if not blocks:
        raise InvalidRequest(f"messages[{index}].content", "not empty", "[]")
    yield from _assistant(blocks) if message.role == "assistant" else _user(blocks, message.role, index)


def _block(value: dict[str, Any], role: str, *where: str | int) -> Block:
    kind, known = value.get("type"), _BLOCKS[role]
    if not isinstance(kind, str) or kind not in known:
        field = f"{where[0]}[{where[1]}].{where[2]}[{where[3]}].type"
        allowed = " or ".join(known)
        raise Unsupported(
            field, message=f"{field}: {kind!r} is not supported for role {role}; it may be {allowed}"
        )
    return read_part(value, known[kind], *where)


def _user(blocks: list[Block], role: str, index: int) -> Iterator[dict[str, Any]]:
    """Results of tools are turns of their own, where they stand."""
    for number, block in enumerate(blocks):
        if isinstance(block, TextBlock):
            yield {"role": role, "content": block.text}
        elif isinstance(block, ToolResultBlock):
            content = block.content
            if not isinstance(content, str):
                content = "\n".join(_texts_of(content, f"messages[{index}].content[{number}].content"))
            # Templates have no place for the flag: the model is told in words.
            text = f"Error: {content}" if block.is_error else content
            yield {"role": "tool", "tool_call_id": block.tool_use_id, "content": text}


def _assistant(blocks: list[Block]) -> Iterator[dict[str, Any]]:
    texts = [block.text for block in blocks if isinstance(block, TextBlock)]
    thoughts = [block.thinking for block in blocks if isinstance(block, ThinkingBlock)]
    calls = [_call(block) for block in blocks if isinstance(block, ToolUseBlock)]
    turn: dict[str, Any] = {"role": "assistant", "content": "".join(texts)}
    if thoughts:
        turn["reasoning_content"] = "".join(thoughts)
    if calls:
        turn["tool_calls"] = calls
    yield turn


def _call(block: ToolUseBlock) -> dict[str, Any]:
    function = {"name": block.name, "arguments": orjson.dumps(block.input).decode()}
    return {"id": block.id, "type": "function", "function": function}


def _texts_of(values: list[dict[str, Any]], field: str) -> Iterator[str]:
    for number, value in enumerate(values):
        where = f"{field}[{number}]"
        if value.get("type") != "text":
            raise Unsupported(f"{where}.type", message=f"{where}: only blocks of type text are supported")
        yield read_part(value, TextBlock, where).text
