"""Text that arrives in pieces, read by a script that looks like it had all of it.

One job: let a parser be straight-line code. A script is a generator that yields whenever it needs more text than there
is; `push` and `finish` run it on. What a script does may depend on the text and on where it ends, never on how it was
cut: each step here consumes only what no further text can change. It must not know what is parsed.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Generic, TypeVar

from quire_gateway.parsing.json_scanner import JsonScanner, ScanStatus

R = TypeVar("R")
E = TypeVar("E")

#: A step of a script: yields for more text, returns R.
Step = Generator[None, None, R]


class ScriptedParser(Generic[E]):
    """Runs `script` over pushed text. Subclasses write events to `events`, and read through the steps below."""

    def __init__(self) -> None:
        self.buffer = ""
        self.is_ended = False
        self.events: list[E] = []
        self._script: Step[None] | None = self.script()

    def script(self) -> Step[None]:
        """The whole reading, from the first character to the last."""
        raise NotImplementedError

    def push(self, text: str) -> list[E]:
        """Take more text; the events that are certain."""
        self.buffer += text
        return self._run()

    def finish(self) -> list[E]:
        """The text has ended: the events that are left."""
        self.is_ended = True
        return self._run()

    def _run(self) -> list[E]:
        if self._script is not None:
            try:
                next(self._script)
            except StopIteration:
                self._script = None
        events, self.events = self.events, []
        return events

    # ---- Steps -------------------------------------------------------------------------------------------------

    def take(self, num_chars: int) -> str:
        """Consume so many of the characters that are there."""
        text, self.buffer = self.buffer[:num_chars], self.buffer[num_chars:]
        return text

    def next_char(self) -> Step[str]:
        """The next character, not consumed; empty at the end."""
        while not self.buffer and not self.is_ended:
            yield
        return self.buffer[:1]

    def space(self) -> Step[str]:
        """Consume whitespace up to something else or the end."""
        while True:
            rest = self.buffer.lstrip()
            if rest or self.is_ended:
                return self.take(len(self.buffer) - len(rest))
            yield

    def literal(self, *options: str) -> Step[str]:
        """Consume one of `options`, of which none begins another; empty if the text goes on with none."""
        while True:
            for option in options:
                if self.buffer.startswith(option):
                    return self.take(len(option))
            if self.is_ended or not any(option.startswith(self.buffer) for option in options):
                return ""
            yield

    def until(self, *tags: str, write: Callable[[str], None]) -> Step[str]:
        """Write everything up to the first of `tags` and consume that; empty if the text ends without one.

        No tag may hold another one.
        """
        while True:
            at, tag = -1, ""
            for candidate in tags:
                place = self.buffer.find(candidate)
                if place >= 0 and (at < 0 or place < at):
                    at, tag = place, candidate
            if tag:
                self._write(self.take(at), write)
                return self.take(len(tag))
            held = 0 if self.is_ended else beginning_at_end(self.buffer, tags)
            self._write(self.take(len(self.buffer) - held), write)
            if self.is_ended:
                return ""
            yield

    def before(self, is_wanted: Callable[[str], bool]) -> Step[str]:
        """Consume characters as long as they are wanted."""
        num = 0
        while True:
            while num < len(self.buffer) and is_wanted(self.buffer[num]):
                num += 1
            if num < len(self.buffer) or self.is_ended:
                return self.take(num)
            yield

    def json_value(
        self, write: Callable[[str], None], keep: Callable[[str], None] = lambda consumed: None
    ) -> Step[bool]:
        """Consume one JSON value and write it as it comes. False: it is none, or the text ended in it.

        Then what was written so far stands, and the rest is not consumed. keep: told what is consumed, unmended.
        """
        scanner = JsonScanner()
        while True:
            num_consumed, text = scanner.feed(self.buffer, is_last=self.is_ended)
            keep(self.take(num_consumed))
            self._write(text, write)
            if scanner.status is not ScanStatus.MORE:
                return scanner.status is ScanStatus.DONE
            if self.is_ended:
                return False
            yield

    @staticmethod
    def _write(text: str, write: Callable[[str], None]) -> None:
        if text:
            write(text)


def beginning_at_end(text: str, tags: Sequence[str]) -> int:
    """How many characters at the end of `text` may be the beginning of one of `tags`."""
    longest = 0
    for tag in tags:
        at = text.find(tag[0], max(0, len(text) - len(tag) + 1))
        while at >= 0:
            if tag.startswith(text[at:]):
                longest = max(longest, len(text) - at)
                break
            at = text.find(tag[0], at + 1)
    return longest
