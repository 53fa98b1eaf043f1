"""gpt-oss: calls are messages to `functions.NAME` in the commentary channel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from quire_gateway.chat.call import Tool
from quire_gateway.parsing.grammar import ANYTHING, CallGrammar, GrammarWriter, Json, closed_schema
from quire_gateway.parsing.harmony import (
    BEGINS,
    CHANNEL,
    CONSTRAIN,
    END,
    ENDS,
    MARKERS,
    MESSAGE,
    START,
    Header,
    read_header,
)
from quire_gateway.parsing.reader import Step
from quire_gateway.parsing.tools.base import ToolFormat, ToolParser, is_name
from quire_gateway.parsing.tools.json_calls import JsonCallParser

FUNCTIONS = "functions."


class HarmonyParser(JsonCallParser):
    """Messages to functions are calls; the bodies of all others are text."""

    def script(self) -> Step[None]:
        """See ScriptedParser."""
        while begin := (yield from self.until(*BEGINS, *ENDS, write=self.text)):
            if begin in ENDS:
                continue
            header = yield from read_header(self, begin)
            if header is None:
                self.text(begin)
            elif not (yield from self._call(header)):
                # The body is text up to the next message or the end of this one: the loop reads it.
                continue

    def _call(self, header: Header) -> Step[bool]:
        name = header.recipient.removeprefix(FUNCTIONS)
        if name == header.recipient or not is_name(name):
            return False
        space = yield from self.space()
        if (yield from self.literal(*ENDS)):
            self.begin(name)
            self.arguments("{}")
            self.end()
            return True
        if not (yield from self.call_arguments(name)):
            self.text(header.text + space)
            return False
        space = yield from self.space()
        if not (yield from self.literal(*ENDS)):
            self.text(space)
        return True


class HarmonyGrammar(CallGrammar):
    """Free outputs are messages, whose marks are tokens of their own; those to functions are bound."""

    def free(self, special_tokens: Mapping[str, int], *, is_parallel: bool) -> str:
        """See CallGrammar."""
        if any(mark not in special_tokens for mark in (START, CHANNEL, CONSTRAIN, MESSAGE, END)):
            return super().free(special_tokens, is_parallel=is_parallel)
        writer = GrammarWriter(special_tokens)
        call, start, end = writer.either(self.calls), writer.text(START), writer.text(END)
        return writer.grammar(
            "start: message* (call | last)",
            f"message: header text {end}",
            f"call: ({start} text)? {call}",
            "last: header? text",
            f"header: ({start} text)? {writer.text(CHANNEL)} /[a-z]+/ {writer.text(MESSAGE)}",
            f"text: {ANYTHING}",
        )


class HarmonyFormat(ToolFormat):
    """See the module."""

    name = "harmony"
    markers = MARKERS

    def parser(self, tools: Sequence[Tool]) -> ToolParser:
        """A parser for one choice."""
        return HarmonyParser(tools)

    def grammar(self, tools: Sequence[Tool], template: str) -> CallGrammar:
        """The grammar of calls. The model makes one a turn; the token that ends it also ends the turn."""
        calls = [
            (
                f"{CHANNEL}commentary to={FUNCTIONS}{tool.name} {CONSTRAIN}json{MESSAGE}",
                Json(closed_schema(tool.parameters)),
            )
            for tool in tools
        ]
        return HarmonyGrammar(
            calls=calls, lead=f"{START}assistant", trigger=f"{CHANNEL}commentary to=", is_single=True
        )
