"""Takes special tokens out of a text in which parsers needed them.

One job: what a client sees holds no special token, although they were kept for the parsers. Works for any chunking.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from quire_gateway.parsing.reader import beginning_at_end


class SpecialTexts:
    """The texts of a vocabulary's special tokens."""

    def __init__(self, texts: Collection[str]) -> None:
        self.texts = tuple(sorted((text for text in texts if text), key=len, reverse=True))
        self.pattern = re.compile("|".join(map(re.escape, self.texts)) or r"(?!)")
        #: Characters with which such a text begins: most pieces hold none of them.
        self._first = frozenset(text[0] for text in self.texts)
        self._longest = max(map(len, self.texts), default=0)

    def num_held(self, text: str) -> int:
        """How many characters at the end of `text` may be the beginning of a special token."""
        if self._first.isdisjoint(text[-self._longest :]):
            return 0
        return beginning_at_end(text, self.texts)


class Cleaner:
    """One text without special tokens."""

    __slots__ = ("_held", "_special")

    def __init__(self, special: SpecialTexts) -> None:
        self._special = special
        self._held = ""

    def push(self, text: str) -> str:
        """More of the text; what of it is certain."""
        cleaned = self._special.pattern.sub("", self._held + text)
        held = self._special.num_held(cleaned)
        self._held = cleaned[len(cleaned) - held :]
        return cleaned[: len(cleaned) - held]

    def flush(self) -> str:
        """What was held back: it was none."""
        held, self._held = self._held, ""
        return held
