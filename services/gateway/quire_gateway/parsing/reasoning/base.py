"""What every way of marking reasoning has in common.

One job: the interface. A format is a plug-in: a class without constructor arguments that fulfils ReasoningFormat, in
the entry-point group `quire.reasoning_parsers`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, NamedTuple

from quire_gateway.parsing.reader import ScriptedParser


class Reasoning(NamedTuple):
    """What the model thinks."""

    text: str


class Content(NamedTuple):
    """What it says: text and calls of tools."""

    text: str


ReasoningPart = Reasoning | Content


class ReasoningParser(ScriptedParser[ReasoningPart]):
    """Reads one choice's output."""

    def reasoning(self, text: str) -> None:
        """`text` is thought."""
        self.events.append(Reasoning(text))

    def content(self, text: str) -> None:
        """`text` is said."""
        if text:
            self.events.append(Content(text))


class ReasoningFormat(ABC):
    """One way of marking reasoning."""

    #: Its name in settings.
    name: ClassVar[str]

    @property
    @abstractmethod
    def start(self) -> str:
        """The text that opens reasoning."""

    @property
    @abstractmethod
    def end(self) -> str:
        """The text that closes it."""

    #: Reasoning can begin anywhere, not only at the start of an output.
    may_repeat: ClassVar[bool] = False

    @property
    def content_start(self) -> str:
        """The text behind which the answer to the user begins."""
        return self.end

    @property
    def markers(self) -> tuple[str, ...]:
        """Texts that a parser looks for. Those that are special tokens of the vocabulary are kept in its text."""
        return (self.start, self.end)

    @abstractmethod
    def starts_open(self, prompt_end: str) -> bool:
        """Whether an output is reasoning from its first character on. prompt_end: the last text of its prompt."""

    @abstractmethod
    def parser(self, *, starts_open: bool) -> ReasoningParser:
        """A parser for one choice."""
