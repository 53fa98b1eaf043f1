"""Llama 3.1 and 3.2: the whole answer is `{"name": ..., "parameters": {...}}`, several with semicolons between them."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from quire_gateway.chat.call import Tool
from quire_gateway.parsing.grammar import CallGrammar
from quire_gateway.parsing.reader import Step
from quire_gateway.parsing.tools.base import ToolFormat, ToolParser
from quire_gateway.parsing.tools.json_calls import JsonCallParser, call_parts

PYTHON_TAG = "<|python_tag|>"


class Llama3JsonParser(JsonCallParser):
    """Objects at the very start, or behind the tag. Without the tag only known names make a call of an object."""

    def script(self) -> Step[None]:
        """See ScriptedParser."""
        space = yield from self.space()
        tag = yield from self.literal(PYTHON_TAG)
        while True:
            if not (yield from self._calls(None if tag else self.tools)):
                self.text(space + tag)
            tag = yield from self.until(PYTHON_TAG, write=self.text)
            if not tag:
                return
            space = ""

    def _calls(self, known: Collection[str] | None) -> Step[bool]:
        """Objects with semicolons between them; False if there is none."""
        if not (yield from self.call_object(known)):
            return False
        while True:
            space = yield from self.space()
            semicolon = yield from self.literal(";")
            behind = (yield from self.space()) if semicolon else ""
            if not semicolon or not (yield from self.call_object(known)):
                self.text(space + semicolon + behind)
                return True


class Llama3JsonFormat(ToolFormat):
    """See the module."""

    name = "llama3_json"
    markers = (PYTHON_TAG,)

    def parser(self, tools: Sequence[Tool]) -> ToolParser:
        """A parser for one choice."""
        return Llama3JsonParser(tools)

    def grammar(self, tools: Sequence[Tool], template: str) -> CallGrammar:
        """The grammar of calls."""
        calls = [call_parts(tool, begin="", arguments_key="parameters") for tool in tools]
        return CallGrammar(calls=calls, separator="; ")
