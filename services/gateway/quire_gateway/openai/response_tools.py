"""Tools of the Responses API: functions of the client, and servers that speak the Model Context Protocol.

One job: read them, refusing built-in tools by name, and say which of them the model may or must call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import Field

from quire_gateway.chat.call import Tool, ToolChoice, ToolMode
from quire_gateway.request_body import StrictModel, read_part
from quire_servicekit.errors import InvalidRequest, Unsupported


class FunctionTool(StrictModel):
    """A function that the client runs."""

    type: Literal["function"]
    name: str
    description: str = ""
    parameters: dict[str, Any] = Field(default_factory=dict)
    strict: bool = False

    def to_tool(self) -> Tool:
        """In domain words."""
        return Tool(
            name=self.name, description=self.description, parameters=self.parameters, is_strict=self.strict
        )


class ToolFilter(StrictModel):
    """Tools by name."""

    tool_names: list[str] = Field(default_factory=list)


class ApprovalFilter(StrictModel):
    """Which tools need approval, and which do not."""

    always: ToolFilter | None = None
    never: ToolFilter | None = None


class McpTool(StrictModel):
    """A server whose tools the model may call."""

    type: Literal["mcp"]
    server_label: str
    server_url: str = ""
    server_description: str = ""
    headers: dict[str, str] = Field(default_factory=dict)
    authorization: str = Field("", repr=False)
    allowed_tools: list[str] | ToolFilter | None = None
    require_approval: Literal["always", "never"] | ApprovalFilter = "always"

    def is_allowed(self, name: str) -> bool:
        """Whether the request lets the model see this tool."""
        if self.allowed_tools is None:
            return True
        names = (
            self.allowed_tools.tool_names
            if isinstance(self.allowed_tools, ToolFilter)
            else self.allowed_tools
        )
        return name in names

    def needs_approval(self, name: str) -> bool:
        """Whether a call of this tool has to be approved first."""
        rule = self.require_approval
        if isinstance(rule, str):
            return rule == "always"
        if rule.never is not None and name in rule.never.tool_names:
            return False
        # With a list of those that always need it, the others do not.
        return rule.always is None or name in rule.always.tool_names


def read_tools(tools: Sequence[Mapping[str, Any]]) -> tuple[list[FunctionTool], list[tuple[int, McpTool]]]:
    """The tools of a request; servers with their index in it. Raises naming the one that is wrong or not supported."""
    functions: list[FunctionTool] = []
    servers: list[tuple[int, McpTool]] = []
    for index, tool in enumerate(tools):
        kind = tool.get("type")
        if kind == "function":
            functions.append(read_part(tool, FunctionTool, "tools", index))
        elif kind == "mcp":
            servers.append((index, read_part(tool, McpTool, "tools", index)))
        else:
            field = f"tools[{index}].type"
            raise Unsupported(field, message=f"{field}: tools of type {kind!r} are not supported")
    return functions, servers


class _NamedFunction(StrictModel):
    type: Literal["function"]
    name: str


class _NamedMcp(StrictModel):
    type: Literal["mcp"]
    server_label: str
    name: str = ""


class _Allowed(StrictModel):
    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: list[dict[str, Any]]


_MODES = {"none": ToolMode.NONE, "auto": ToolMode.AUTO, "required": ToolMode.REQUIRED}


def choose(
    value: str | Mapping[str, Any], tools: Sequence[Tool], labels: Mapping[str, str]
) -> tuple[tuple[Tool, ...], ToolChoice]:
    """The tools that the model is told of, and whether it must call one.

    labels: by name of a server's tool, the server's label.
    """
    if isinstance(value, str):
        return tuple(tools), ToolChoice(_MODES[value])
    kind = value.get("type")
    if kind == "function":
        return tuple(tools), ToolChoice(ToolMode.NAMED, read_part(value, _NamedFunction, "tool_choice").name)
    if kind == "mcp":
        named = read_part(value, _NamedMcp, "tool_choice")
        if named.name:
            return tuple(tools), ToolChoice(ToolMode.NAMED, named.name)
        return _of_server(named.server_label, tools, labels), ToolChoice(ToolMode.REQUIRED)
    if kind == "allowed_tools":
        allowed = read_part(value, _Allowed, "tool_choice")
        return _allowed(allowed, tools, labels), ToolChoice(_MODES[allowed.mode])
    raise Unsupported("tool_choice.type", message=f"tool_choice.type {kind!r} is not supported")


def _of_server(label: str, tools: Sequence[Tool], labels: Mapping[str, str]) -> tuple[Tool, ...]:
    found = tuple(tool for tool in tools if labels.get(tool.name) == label)
    if not found:
        raise InvalidRequest("tool_choice.server_label", "the label of a server in tools", label)
    return found


def _allowed(allowed: _Allowed, tools: Sequence[Tool], labels: Mapping[str, str]) -> tuple[Tool, ...]:
    found: list[Tool] = []
    for index, entry in enumerate(allowed.tools):
        if entry.get("type") == "mcp":
            found += _of_server(str(entry.get("server_label")), tools, labels)
            continue
        named = read_part(entry, _NamedFunction, "tool_choice", "tools", index).name
        match = next((tool for tool in tools if tool.name == named), None)
        if match is None:
            raise InvalidRequest(f"tool_choice.tools[{index}].name", "the name of a tool in tools", named)
        found.append(match)
    return tuple(found)
