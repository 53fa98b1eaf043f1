"""Reasoning between two tags at the start of an output: Qwen3, DeepSeek R1 and any other pair.

Whitespace around the tags belongs to them.
"""

from __future__ import annotations

from quire_gateway.parsing.reader import Step
from quire_gateway.parsing.reasoning.base import ReasoningFormat, ReasoningParser


class TagParser(ReasoningParser):
    """One span of reasoning at most."""

    def __init__(self, start: str, end: str, *, starts_open: bool) -> None:
        self._start, self._end, self._starts_open = start, end, starts_open
        super().__init__()

    def script(self) -> Step[None]:
        """See ScriptedParser."""
        space = yield from self.space()
        start = yield from self.literal(self._start)
        if start or self._starts_open:
            yield from self._reasoning()
            yield from self.space()
        else:
            self.content(space)
        yield from self.until(write=self.content)

    def _reasoning(self) -> Step[None]:
        yield from self.space()
        held = [""]

        def write(text: str) -> None:
            text = held[0] + text
            certain = text.rstrip()
            held[0] = text[len(certain) :]
            if certain:
                self.reasoning(certain)

        yield from self.until(self._end, write=write)


class TagFormat(ReasoningFormat):
    """A pair of tags. always_open: the model thinks from the start even where nothing opens the tag."""

    name = "tags"

    def __init__(self, start: str, end: str, *, always_open: bool = False) -> None:
        self._start, self._end, self._always_open = start, end, always_open

    @property
    def start(self) -> str:
        """The text that opens reasoning."""
        return self._start

    @property
    def end(self) -> str:
        """The text that closes it."""
        return self._end

    def starts_open(self, prompt_end: str) -> bool:
        """The prompt has opened it; or not closed it, with always_open."""
        written = prompt_end.rstrip()
        return written.endswith(self.start) or (self._always_open and not written.endswith(self.end))

    def parser(self, *, starts_open: bool) -> ReasoningParser:
        """A parser for one choice."""
        return TagParser(self.start, self.end, starts_open=starts_open)


class Qwen3Format(TagFormat):
    """Qwen3: thinks if it opens the tag, or if the prompt has."""

    name = "qwen3"

    def __init__(self) -> None:
        super().__init__("<think>", "</think>")


class DeepSeekR1Format(TagFormat):
    """DeepSeek R1: always thinks; the tag that opens may be missing."""

    name = "deepseek_r1"

    def __init__(self) -> None:
        super().__init__("<think>", "</think>", always_open=True)
