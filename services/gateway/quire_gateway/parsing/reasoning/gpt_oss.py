"""gpt-oss: reasoning is what it writes in the analysis channel.

The final channel's headers are taken off. Messages to a tool pass through as they are, for the tool parser.
"""

from __future__ import annotations

from quire_gateway.parsing.harmony import BEGINS, CHANNEL, END, ENDS, MARKERS, MESSAGE, read_header
from quire_gateway.parsing.reader import Step
from quire_gateway.parsing.reasoning.base import ReasoningFormat, ReasoningParser


class GptOssParser(ReasoningParser):
    """Message by message."""

    def script(self) -> Step[None]:
        """See ScriptedParser."""
        num_thoughts = 0
        begin = yield from self.until(*BEGINS, write=self.content)
        while begin:
            header = yield from read_header(self, begin)
            if header is None:
                self.content(begin)
                break
            is_thought = header.channel == "analysis" and not header.recipient
            if is_thought and num_thoughts:
                self.reasoning("\n")
            num_thoughts += is_thought
            if header.recipient:
                self.content(header.text)
            begin = yield from self.until(
                *BEGINS, *ENDS, write=self.reasoning if is_thought else self.content
            )
            if begin in ENDS:
                if header.recipient:
                    self.content(begin)
                begin = yield from self.until(*BEGINS, write=self.content)
        yield from self.until(write=self.content)


class GptOssFormat(ReasoningFormat):
    """See the module."""

    name = "gpt_oss"
    may_repeat = True

    @property
    def start(self) -> str:
        """The text that opens reasoning."""
        return f"{CHANNEL}analysis{MESSAGE}"

    @property
    def end(self) -> str:
        """The text that closes it."""
        return END

    @property
    def content_start(self) -> str:
        """The text behind which the answer to the user begins."""
        return f"{CHANNEL}final{MESSAGE}"

    @property
    def markers(self) -> tuple[str, ...]:
        """All of the syntax."""
        return MARKERS

    def starts_open(self, prompt_end: str) -> bool:
        """The prompt ends in an open analysis message."""
        return prompt_end.endswith(self.start)

    def parser(self, *, starts_open: bool) -> ReasoningParser:
        """A parser for one choice."""
        parser = GptOssParser()
        # As if the model had opened it itself.
        parser.buffer = self.start if starts_open else ""
        return parser
