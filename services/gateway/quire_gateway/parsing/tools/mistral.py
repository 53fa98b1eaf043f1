"""Mistral: `[TOOL_CALLS]` and a list of call objects, or in newer models `[TOOL_CALLS]name[ARGS]{...}` per call."""

from __future__ import annotations

import secrets
import string
from collections.abc import Sequence

from quire_gateway.chat.call import Tool
from quire_gateway.parsing.grammar import CallGrammar, Json, closed_schema
from quire_gateway.parsing.reader import Step
from quire_gateway.parsing.tools.base import ToolFormat, ToolParser, is_name
from quire_gateway.parsing.tools.json_calls import JsonCallParser, call_parts

BEGIN, ARGS, CALL_ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"
#: The templates accept ids of exactly so many letters and digits.
NUM_ID_CHARS = 9


class MistralParser(JsonCallParser):
    """Both ways."""

    def script(self) -> Step[None]:
        """See ScriptedParser."""
        while (yield from self.until(BEGIN, write=self.text)):
            space = yield from self.space()
            char = yield from self.next_char()
            if not (yield from (self._list() if char == "[" else self._named())):
                self.text(BEGIN + space)

    def _list(self) -> Step[bool]:
        """`[{...}, {...}]`; False, and nothing consumed, if no call begins in it."""
        consumed, is_first = self.take(1), True
        while True:
            consumed += yield from self.space()
            if not (yield from self.call_object()):
                break
            consumed, is_first = (yield from self.space()), False
            if not (yield from self.literal(",")):
                break
            consumed += ","
        if is_first:
            self.buffer = consumed + self.buffer
            return False
        if not (yield from self.literal("]")):
            self.text(consumed)
        return True

    def _named(self) -> Step[bool]:
        """`name[ARGS]{...}`, with an id between or without `[ARGS]`; False, and nothing consumed, if it is none."""
        name = yield from self.before(lambda char: is_name(char))
        consumed = name
        if name and (yield from self.literal(CALL_ID)):
            consumed += CALL_ID + (yield from self.before(lambda char: char.isalnum()))
        consumed += yield from self.literal(ARGS)
        space = yield from self.space()
        if is_name(name) and (yield from self.call_arguments(name)):
            return True
        self.buffer = consumed + space + self.buffer
        return False


class MistralFormat(ToolFormat):
    """See the module."""

    name = "mistral"
    markers = (BEGIN, ARGS, CALL_ID)

    def parser(self, tools: Sequence[Tool]) -> ToolParser:
        """A parser for one choice."""
        return MistralParser(tools)

    def grammar(self, tools: Sequence[Tool], template: str) -> CallGrammar:
        """The grammar of calls, in the way that the template writes them."""
        if ARGS in template:
            named = [(f"{BEGIN}{tool.name}{ARGS}", Json(closed_schema(tool.parameters))) for tool in tools]
            return CallGrammar(calls=named, trigger=BEGIN)
        calls = [call_parts(tool, begin="") for tool in tools]
        return CallGrammar(calls=calls, prefix=f"{BEGIN} [", separator=", ", suffix="]", trigger=BEGIN)

    def new_call_id(self) -> str:
        """An id that the templates accept."""
        return "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(NUM_ID_CHARS))
