"""What a client asks of a conversation, free of any dialect.

One job: the data, and what can be checked without a model. Knows neither JSON bodies nor protobuf.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from quire_gateway.requests import ChatPrompt, GenerationRequest
from quire_gateway.structured import MAX_NESTING, is_deeper
from quire_servicekit.errors import InvalidRequest

MAX_TOOLS = 128
#: What the OpenAI and Anthropic dialects allow.
_TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


class ToolMode(enum.Enum):
    """Whether the model calls tools."""

    #: It may not: it is not told of them either.
    NONE = "none"
    #: As it likes.
    AUTO = "auto"
    #: At least one call, of any tool.
    REQUIRED = "required"
    #: The tool of `ToolChoice.name`.
    NAMED = "named"


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """Which tools the model may or must call."""

    mode: ToolMode = ToolMode.AUTO
    name: str = ""

    @property
    def is_forced(self) -> bool:
        """There is no answer without a call."""
        return self.mode in (ToolMode.REQUIRED, ToolMode.NAMED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A function that the model may call."""

    name: str
    description: str = ""
    #: JSON schema of its arguments; empty: an object of anything.
    parameters: Mapping[str, Any] = field(default_factory=dict)
    #: Calls of it must match the schema, also where the model is free to call.
    is_strict: bool = False

    def definition(self) -> dict[str, Any]:
        """The tool in the OpenAI form, as templates expect it."""
        function: dict[str, Any] = {"name": self.name}
        if self.description:
            function["description"] = self.description
        function["parameters"] = self.parameters or {"type": "object", "properties": {}}
        return {"type": "function", "function": function}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningOptions:
    """How the model thinks, where it does. None is "unset": as the model's template has it."""

    #: A word for the template: none, minimal, low, medium, high, ... none: it does not think at all.
    effort: str | None = None
    #: False: the thinking is left out of the answer.
    is_included: bool = True
    #: Tokens it may think at most.
    max_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatCall:
    """A conversation to continue.

    request: its prompt is a ChatPrompt without tools; the messages are in the OpenAI form. A constraint in its sampling
    holds for the text of the answer.
    """

    request: GenerationRequest
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice = field(default_factory=ToolChoice)
    has_parallel_calls: bool = True
    reasoning: ReasoningOptions = field(default_factory=ReasoningOptions)
    #: The events carry token ids and log-probabilities too.
    wants_tokens: bool = False

    @property
    def prompt(self) -> ChatPrompt:
        """The conversation."""
        assert isinstance(self.request.prompt, ChatPrompt), "a chat is a conversation"
        return self.request.prompt

    @property
    def offered_tools(self) -> tuple[Tool, ...]:
        """The tools that the model is told of."""
        return () if self.tool_choice.mode is ToolMode.NONE else self.tools


def validate_tools(call: ChatCall, names: Mapping[str, str] | None = None) -> None:
    """Raise InvalidRequest for the first thing wrong with the call's tools.

    names: what the client's dialect calls "tools" and "tool_choice", where that differs.
    """
    called = names or {}
    field_name, choice_name = called.get("tools", "tools"), called.get("tool_choice", "tool_choice")
    if len(call.tools) > MAX_TOOLS:
        raise InvalidRequest(field_name, f"at most {MAX_TOOLS}", len(call.tools))
    seen: set[str] = set()
    for index, tool in enumerate(call.tools):
        if not _TOOL_NAME.fullmatch(tool.name):
            raise InvalidRequest(
                f"{field_name}[{index}].name", "1 to 64 letters, digits, underscores and hyphens", tool.name
            )
        if tool.name in seen:
            raise InvalidRequest(
                f"{field_name}[{index}].name", "different from every other tool's", tool.name
            )
        if is_deeper(tool.parameters, MAX_NESTING):
            where = f"{field_name}[{index}].parameters"
            raise InvalidRequest(where, f"nested at most {MAX_NESTING} levels deep", "a deeper one")
        seen.add(tool.name)
    if call.tool_choice.is_forced and not call.tools:
        raise InvalidRequest(
            choice_name, message=f"{choice_name} is only allowed when {field_name} are given"
        )
    if call.tool_choice.mode is ToolMode.NAMED and call.tool_choice.name not in seen:
        raise InvalidRequest(choice_name, f"one of {field_name}", call.tool_choice.name)
