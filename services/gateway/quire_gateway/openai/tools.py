"""The parts of a chat's body that are about tools: their definitions, which to call, and calls that were made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import Field

from quire_gateway.chat.call import Tool, ToolChoice, ToolMode
from quire_gateway.openai.parameters import StrictModel
from quire_servicekit.errors import InvalidRequest


class Function(StrictModel):
    """What a tool does."""

    name: str
    description: str = ""
    parameters: dict[str, Any] = Field(default_factory=dict)
    strict: bool = False


class ToolDefinition(StrictModel):
    """A tool; only functions are served."""

    type: Literal["function"]
    function: Function

    def tool(self) -> Tool:
        """The tool in domain words."""
        function = self.function
        return Tool(
            name=function.name,
            description=function.description,
            parameters=function.parameters,
            is_strict=function.strict,
        )


class NamedFunction(StrictModel):
    """A function by its name."""

    name: str


class NamedTool(StrictModel):
    """A tool by its name."""

    type: Literal["function"]
    function: NamedFunction


class AllowedTools(StrictModel):
    """Some of the tools, and whether one has to be called."""

    mode: Literal["auto", "required"]
    tools: list[NamedTool] = Field(min_length=1)


class AllowedToolsChoice(StrictModel):
    """The choice among some of the tools."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


ToolChoiceValue = Literal["none", "auto", "required"] | NamedTool | AllowedToolsChoice


def choice_of(
    value: ToolChoiceValue | None, definitions: Sequence[ToolDefinition]
) -> tuple[tuple[Tool, ...], ToolChoice]:
    """The tools that may be called, and the choice among them. Raises InvalidRequest for one that is not defined."""
    tools = tuple(definition.tool() for definition in definitions)
    if value is None:
        return tools, ToolChoice()
    if isinstance(value, str):
        return tools, ToolChoice(ToolMode(value))
    if isinstance(value, NamedTool):
        return tools, ToolChoice(ToolMode.NAMED, value.function.name)
    allowed = [named.function.name for named in value.allowed_tools.tools]
    known = {tool.name for tool in tools}
    for name in allowed:
        if name not in known:
            raise InvalidRequest("tool_choice.allowed_tools.tools", "one of tools", name)
    chosen = tuple(tool for tool in tools if tool.name in allowed)
    return chosen, ToolChoice(ToolMode(value.allowed_tools.mode))


class MadeFunction(StrictModel):
    """What a call called."""

    name: str
    arguments: str = ""


class MadeCall(StrictModel):
    """A call of an earlier answer."""

    id: str = ""
    type: Literal["function"] = "function"
    function: MadeFunction
    #: Clients that put a stream together leave it in.
    index: int | None = None

    def render(self) -> dict[str, Any]:
        """The call as templates expect it; its arguments are still text."""
        function = {"name": self.function.name, "arguments": self.function.arguments}
        call: dict[str, Any] = {"id": self.id} if self.id else {}
        return {**call, "type": self.type, "function": function}
