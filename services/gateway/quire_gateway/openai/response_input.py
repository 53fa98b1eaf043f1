"""The input of a response: items as clients write them, and the conversation that they are.

One job: read items, refusing by path what is not served, and turn them into messages in the OpenAI chat form.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import Field

from quire_gateway.openai.response_items import new_item_id, unseal
from quire_gateway.request_body import StrictModel, read_part
from quire_servicekit.errors import InvalidRequest, Unsupported

Item = dict[str, Any]


class TextPart(StrictModel):
    """A part of a message."""

    type: Literal["input_text", "output_text", "text", "refusal", "reasoning_text", "summary_text"]
    text: str = ""
    refusal: str = ""
    annotations: list[Any] = Field(default_factory=list)
    logprobs: list[Any] = Field(default_factory=list)


class MessageItem(StrictModel):
    """A message of any role; of the assistant's, also as it came out."""

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[dict[str, Any]]
    id: str = ""
    status: str = ""
    phase: str = ""


class FunctionCallItem(StrictModel):
    """A call that the model made."""

    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str
    id: str = ""
    status: str = ""
    namespace: None = None
    caller: dict[str, Any] | None = None


class FunctionOutputItem(StrictModel):
    """What a call gave."""

    type: Literal["function_call_output"]
    call_id: str
    output: str | list[dict[str, Any]]
    id: str = ""
    status: str = ""


class ReasoningItem(StrictModel):
    """What the model thought."""

    type: Literal["reasoning"]
    id: str = ""
    summary: list[dict[str, Any]] = Field(default_factory=list)
    content: list[dict[str, Any]] = Field(default_factory=list)
    encrypted_content: str = ""
    status: str = ""


class McpCallItem(StrictModel):
    """A call that an MCP server answered."""

    type: Literal["mcp_call"]
    id: str
    server_label: str
    name: str
    arguments: str
    output: str | None = None
    error: Any = None
    status: str = ""
    approval_request_id: str | None = None


class McpListToolsItem(StrictModel):
    """The tools that an MCP server had."""

    type: Literal["mcp_list_tools"]
    id: str
    server_label: str
    tools: list[dict[str, Any]] = Field(default_factory=list)
    error: Any = None


class McpApprovalRequestItem(StrictModel):
    """A call that waits for approval."""

    type: Literal["mcp_approval_request"]
    id: str
    server_label: str
    name: str
    arguments: str


class McpApprovalResponseItem(StrictModel):
    """Whether it may be made."""

    type: Literal["mcp_approval_response"]
    approval_request_id: str
    approve: bool
    reason: str = ""
    id: str = ""


_ITEMS: dict[str, type[StrictModel]] = {
    "message": MessageItem,
    "function_call": FunctionCallItem,
    "function_call_output": FunctionOutputItem,
    "reasoning": ReasoningItem,
    "mcp_call": McpCallItem,
    "mcp_list_tools": McpListToolsItem,
    "mcp_approval_request": McpApprovalRequestItem,
    "mcp_approval_response": McpApprovalResponseItem,
}


def read_items(value: str | Sequence[Item]) -> list[Item]:
    """The input as items that have ids. Raises naming the item that is wrong or not supported."""
    if isinstance(value, str):
        part = {"type": "input_text", "text": value}
        return [{"type": "message", "id": new_item_id("message"), "role": "user", "content": [part]}]
    if not value:
        raise InvalidRequest("input", "not empty", "[]")
    return [_read_item(item, index) for index, item in enumerate(value)]


def _read_item(item: Item, index: int) -> Item:
    kind = item.get("type") or "message"
    if not isinstance(kind, str) or kind not in _ITEMS:
        field = f"input[{index}].type"
        raise Unsupported(field, message=f"{field}: items of type {kind!r} are not supported")
    read_part(item, _ITEMS[kind], "input", index)
    for name in ("content", "output", "summary"):
        if isinstance(parts := item.get(name), list):
            for number, part in enumerate(parts):
                _check_part(part, "input", index, name, number)
    return {**item, "type": kind, "id": item.get("id") or new_item_id(kind)}


def _check_part(part: Any, *where: str | int) -> None:
    kind = part.get("type") if isinstance(part, dict) else None
    if isinstance(kind, str) and kind in ("input_image", "input_file", "input_audio", "computer_screenshot"):
        field = f"{where[0]}[{where[1]}].{where[2]}[{where[3]}].type"
        raise Unsupported(field, message=f"{field}: content of type {kind} is not supported")
    read_part(part, TextPart, *where)


def messages_of(items: Sequence[Item]) -> list[dict[str, Any]]:
    """The conversation in the OpenAI chat form: what the assistant said, thought and called in a row is one turn."""
    messages: list[dict[str, Any]] = []
    for index, item in enumerate(items):
        if turn := _assistant_turn(item, index):
            if messages and messages[-1]["role"] == "assistant":
                _join(messages[-1], turn)
            else:
                messages.append({"role": "assistant", "content": "", **turn})
        messages += _other_turns(item)
    return messages


def _assistant_turn(item: Item, index: int) -> dict[str, Any]:
    """What the item adds to the assistant's turn; empty if it is no part of one."""
    kind = item["type"]
    if kind == "message" and item["role"] == "assistant":
        return {"content": _text_of(item["content"])}
    if kind == "reasoning":
        return {"reasoning_content": _thoughts_of(item, index)}
    if kind == "function_call":
        return {"tool_calls": [_call(item["call_id"], item)]}
    if kind == "mcp_call":
        return {"tool_calls": [_call(item["id"], item)]}
    return {}


def _other_turns(item: Item) -> list[dict[str, Any]]:
    kind = item["type"]
    if kind == "message" and item["role"] != "assistant":
        role = "system" if item["role"] == "developer" else item["role"]
        return [{"role": role, "content": _text_of(item["content"])}]
    if kind == "function_call_output":
        return [{"role": "tool", "tool_call_id": item["call_id"], "content": _text_of(item["output"])}]
    if kind == "mcp_call":
        return [{"role": "tool", "tool_call_id": item["id"], "content": _mcp_result(item)}]
    return []


def _join(turn: dict[str, Any], more: dict[str, Any]) -> None:
    for name, value in more.items():
        turn[name] = turn[name] + value if turn.get(name) else value


def _call(call_id: str, item: Item) -> dict[str, Any]:
    function = {"name": item["name"], "arguments": item["arguments"]}
    return {"id": call_id, "type": "function", "function": function}


def _mcp_result(item: Item) -> str:
    error = item.get("error")
    if error is None:
        return item.get("output") or ""
    if isinstance(error, dict):
        error = error.get("message") or _text_of(error.get("content") or "")
    return f"Error: {error}"


def _text_of(content: str | Sequence[Item]) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(part.get("text") or part.get("refusal") or "" for part in content)


def _thoughts_of(item: Item, index: int) -> str:
    parts = item.get("content") or item.get("summary") or []
    if parts or not item.get("encrypted_content"):
        return _text_of(parts)
    try:
        return unseal(item["encrypted_content"])
    except ValueError as error:
        raise InvalidRequest(
            f"input[{index}].encrypted_content",
            message=f"input[{index}].encrypted_content is not one that this server wrote",
        ) from error
