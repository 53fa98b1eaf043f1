"""DeepSeek V3, R1 and V3.1: calls between tokens of their own, arguments fenced as JSON in the older models."""

from __future__ import annotations

from collections.abc import Sequence

from quire_gateway.chat.call import Tool
from quire_gateway.parsing.grammar import CallGrammar, Json, closed_schema
from quire_gateway.parsing.reader import Step
from quire_gateway.parsing.tools.base import ToolFormat, ToolParser, is_name
from quire_gateway.parsing.tools.json_calls import JsonCallParser

CALLS_BEGIN, CALLS_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
BEGIN, SEPARATOR, END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
FENCE = "```json"
FENCE_END = "```"
#: What stands in a name's place in the older models; the name follows the separator there.
KIND = "function"


class DeepSeekParser(JsonCallParser):
    """Both ways: `function<sep>name`, a line end and fenced JSON, or `name<sep>` and JSON."""

    def script(self) -> Step[None]:
        """See ScriptedParser."""
        while tag := (yield from self.until(CALLS_BEGIN, CALLS_END, BEGIN, write=self.text)):
            if tag == BEGIN and not (yield from self._call()):
                self.text(BEGIN)

    def _call(self) -> Step[bool]:
        """What stands behind BEGIN; False, and nothing consumed, if it is no call."""
        consumed = yield from self.space()
        name = yield from self.before(lambda char: is_name(char))
        separator = yield from self.literal(SEPARATOR)
        consumed += name + separator
        if name == KIND and separator:
            name = yield from self.before(lambda char: is_name(char))
            consumed += name
        consumed += yield from self.space()
        fence = yield from self.literal(FENCE)
        consumed += fence + (yield from self.space())
        if not (separator and is_name(name) and (yield from self.call_arguments(name))):
            self.buffer = consumed + self.buffer
            return False
        space = yield from self.space()
        if fence and (yield from self.literal(FENCE_END)):
            space = yield from self.space()
        if not (yield from self.literal(END)):
            self.text(space)
        return True


class DeepSeekFormat(ToolFormat):
    """See the module."""

    name = "deepseek"
    markers = (CALLS_BEGIN, CALLS_END, BEGIN, SEPARATOR, END)
    has_text_arguments = True

    def parser(self, tools: Sequence[Tool]) -> ToolParser:
        """A parser for one choice."""
        return DeepSeekParser(tools)

    def grammar(self, tools: Sequence[Tool], template: str) -> CallGrammar:
        """The grammar of calls, in the way that the template writes them."""
        is_fenced = FENCE in template
        before = f"{BEGIN}{KIND}{SEPARATOR}" if is_fenced else BEGIN
        between, end = (f"\n{FENCE}\n", f"\n{FENCE_END}{END}") if is_fenced else (SEPARATOR, END)
        calls = [
            (f"{before}{tool.name}{between}", Json(closed_schema(tool.parameters)), end) for tool in tools
        ]
        return CallGrammar(
            calls=calls,
            prefix=CALLS_BEGIN,
            separator="\n" if is_fenced else "",
            suffix=CALLS_END,
            trigger=CALLS_BEGIN,
        )
