"""What every way of writing calls has in common.

One job: the interface of a tool format, and a parser's means of telling text from calls. A format is a plug-in: a class
without constructor arguments that fulfils ToolFormat, in the entry-point group `quire.tool_parsers`.
"""

from __future__ import annotations

import re
import secrets
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from quire_gateway.chat.call import Tool
from quire_gateway.parsing.grammar import CallGrammar
from quire_gateway.parsing.reader import ScriptedParser

#: What a call may be called at all; anything else is no call.
_NAME = re.compile(r"[\w.:/-]{1,128}", re.ASCII)


class Text(NamedTuple):
    """Text that belongs to no call."""

    text: str


class CallStarted(NamedTuple):
    """A call begins."""

    name: str


class CallArguments(NamedTuple):
    """More of the arguments of the call that has begun: JSON text of one object."""

    text: str


class CallFinished(NamedTuple):
    """Nothing more comes of the call."""


ParsedCall = Text | CallStarted | CallArguments | CallFinished


class ToolParser(ScriptedParser[ParsedCall]):
    """Reads one choice's content.

    Whitespace at the start, and between and behind calls, is part of the calls' syntax: it becomes text only where
    other text follows it, or where there are no calls at all. Everything else is either in a call or in text.
    """

    def __init__(self, tools: Sequence[Tool] = ()) -> None:
        self.tools: Mapping[str, Tool] = {tool.name: tool for tool in tools}
        self.num_calls = 0
        self._gap: str | None = ""
        super().__init__()

    def finish(self) -> list[ParsedCall]:
        """The text has ended: the events that are left."""
        events = super().finish()
        if self._gap and not self.num_calls:
            events.append(Text(self._gap))
        self._gap = ""
        return events

    def text(self, text: str) -> None:
        """`text` belongs to no call."""
        if self._gap is not None:
            text = self._gap + text
            if not text.strip():
                self._gap = text
                return
            self._gap = None
        self.events.append(Text(text))

    def begin(self, name: str) -> None:
        """A call of `name` begins."""
        self.num_calls += 1
        self.events.append(CallStarted(name))

    def arguments(self, text: str) -> None:
        """More arguments."""
        if text:
            self.events.append(CallArguments(text))

    def end(self) -> None:
        """Nothing more comes of the call."""
        self._gap = ""
        self.events.append(CallFinished())


class ToolFormat(ABC):
    """One way of writing calls."""

    #: Its name in settings.
    name: ClassVar[str]
    #: Texts that a parser looks for. Those that are special tokens of the model's vocabulary are kept in its text.
    markers: ClassVar[tuple[str, ...]] = ()
    #: Templates of such models want the arguments of earlier calls as JSON text, not as objects.
    has_text_arguments: ClassVar[bool] = False

    @abstractmethod
    def parser(self, tools: Sequence[Tool]) -> ToolParser:
        """A parser for one choice."""

    @abstractmethod
    def grammar(self, tools: Sequence[Tool], template: str) -> CallGrammar:
        """The grammar of calls. template: the model's chat template, for formats that have dialects."""

    def new_call_id(self) -> str:
        """An id for a call, as the model's template can take it."""
        return f"call_{secrets.token_hex(12)}"


def is_name(text: str | None) -> bool:
    """Whether `text` can be the name of a tool."""
    return text is not None and _NAME.fullmatch(text) is not None


def parameter_schema(tool: Tool | None, name: str) -> Mapping[str, Any]:
    """The schema of one parameter; empty if it has none."""
    properties = tool.parameters.get("properties") if tool is not None else None
    schema = properties.get(name) if isinstance(properties, Mapping) else None
    return schema if isinstance(schema, Mapping) else {}
