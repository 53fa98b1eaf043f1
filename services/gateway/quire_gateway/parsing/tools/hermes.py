"""Hermes, Qwen 2.5 and 3 and many others: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`."""

from __future__ import annotations

from collections.abc import Sequence

from quire_gateway.chat.call import Tool
from quire_gateway.parsing.grammar import CallGrammar
from quire_gateway.parsing.reader import Step
from quire_gateway.parsing.tools.base import ToolFormat, ToolParser
from quire_gateway.parsing.tools.json_calls import JsonCallParser, call_parts

BEGIN, END = "<tool_call>", "</tool_call>"


class HermesParser(JsonCallParser):
    """A call object between tags; the closing tag may be missing."""

    def script(self) -> Step[None]:
        """See ScriptedParser."""
        while (yield from self.until(BEGIN, write=self.text)):
            space = yield from self.space()
            if not (yield from self.call_object()):
                self.text(BEGIN + space)
                continue
            space = yield from self.space()
            if not (yield from self.literal(END)):
                self.text(space)


class HermesFormat(ToolFormat):
    """See the module."""

    name = "hermes"
    markers = (BEGIN, END)

    def parser(self, tools: Sequence[Tool]) -> ToolParser:
        """A parser for one choice."""
        return HermesParser(tools)

    def grammar(self, tools: Sequence[Tool], template: str) -> CallGrammar:
        """The grammar of calls."""
        calls = [call_parts(tool, begin=f"{BEGIN}\n", end=f"\n{END}") for tool in tools]
        return CallGrammar(calls=calls, separator="\n", trigger=BEGIN)
