"""Finds stop texts in a text that arrives in pieces, and never lets a part of one out.

One job: hold back what may still become a stop text. It must not know tokens: a stop may begin and end anywhere inside
them. The rule does not depend on how the text was cut: the sequence ends where the first stop text is complete; of
several that end at the same character the longest counts.
"""

from __future__ import annotations

from collections.abc import Sequence


def find_stop(text: str, stops: Sequence[str]) -> tuple[int, int] | None:
    """Where the first complete stop text lies in `text`, as (start, end); None if there is none."""
    best: tuple[int, int] | None = None
    for stop in stops:
        start = text.find(stop)
        if start >= 0 and (best is None or (start + len(stop), start) < (best[1], best[0])):
            best = (start, start + len(stop))
    return best


class StopMatcher:
    """The search in one sequence's text. Holds back at most the longest stop's length minus one characters."""

    __slots__ = ("_candidates", "_held", "_include", "_stops", "matched", "num_chars_after")

    def __init__(self, stops: Sequence[str], *, include_stop_text: bool = False) -> None:
        """`stops`: texts of at least one character each."""
        if any(not stop for stop in stops):
            raise ValueError("a stop text must have at least one character")
        self._stops = tuple(stops)
        self._include = include_stop_text
        self._held = ""
        #: The stop text that ended the sequence; None while it goes on.
        self.matched: str | None = None
        #: Characters of the last piece that lie behind the matched stop text.
        self.num_chars_after = 0
        # Per last character: beginnings of stop texts that end with it, longest first. Most characters have none.
        candidates: dict[str, list[str]] = {}
        for beginning in {stop[:length] for stop in self._stops for length in range(1, len(stop))}:
            candidates.setdefault(beginning[-1], []).append(beginning)
        for beginnings in candidates.values():
            beginnings.sort(key=len, reverse=True)
        self._candidates = candidates

    def feed(self, piece: str) -> str:
        """Take the next piece; return the text that is certain not to belong to a stop text.

        At a match `matched` is set and everything from the stop text on is dropped (or from behind it, with
        include_stop_text). Pieces after a match are dropped whole.
        """
        if self.matched is not None:
            return ""
        text = self._held + piece
        found = find_stop(text, self._stops)
        if found is not None:
            start, end = found
            self.matched = text[start:end]
            self._held = ""
            self.num_chars_after = len(text) - end
            return text[: end if self._include else start]
        held = self._beginning_at_end_of(text)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]

    def flush(self) -> str:
        """The text held back: the sequence has ended without a stop text, so it was none."""
        held, self._held = self._held, ""
        return held

    def _beginning_at_end_of(self, text: str) -> int:
        """How many characters at the end of `text` may be the beginning of a stop text."""
        for beginning in self._candidates.get(text[-1:], ()):
            if text.endswith(beginning):
                return len(beginning)
        return 0


def num_tokens_until_stop(token_bytes: Sequence[bytes], num_bytes_after: int) -> int:
    """How many of the last piece's tokens are needed to complete the stop text.

    token_bytes: bytes of each token of the piece. num_bytes_after: UTF-8 length of what follows the stop text.
    Tokens that lie wholly behind it are not counted; at least one token is.
    """
    needed = len(token_bytes)
    while needed > 1 and len(token_bytes[needed - 1]) <= num_bytes_after:
        num_bytes_after -= len(token_bytes[needed - 1])
        needed -= 1
    return needed
