"""One JSON value in text that arrives in pieces: where it ends, and whether it is one at all.

One job: pass the value through as it comes, strictly. Only one thing is mended: control characters inside strings,
which models write raw, are escaped, so that what comes out is JSON.
"""

from __future__ import annotations

import enum
import json
import re

_STRING_RUN = re.compile(r'[^"\\\x00-\x1f]+')
_ESCAPE = re.compile(r'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})')
_ESCAPE_BEGINNING = re.compile(r"\\(?:u[0-9a-fA-F]{0,3})?")
_LITERAL_RUN = re.compile(r"[-+.0-9a-zA-Z]+")
_LITERAL = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?|true|false|null")
_LITERAL_BEGINNING = re.compile(
    r"-?(?:0|[1-9][0-9]*)?(?:\.[0-9]*)?(?:[eE][-+]?[0-9]*)?|t(?:ru?)?|f(?:a(?:ls?)?)?|n(?:ul?)?"
)
_SPACE = re.compile(r"[ \t\n\r]+")


class ScanStatus(enum.Enum):
    """Where the scanner stands."""

    MORE = enum.auto()
    DONE = enum.auto()
    #: What comes next cannot follow.
    INVALID = enum.auto()


class _Expect(enum.Enum):
    """What the grammar allows next."""

    VALUE = enum.auto()
    VALUE_OR_END = enum.auto()
    KEY = enum.auto()
    KEY_OR_END = enum.auto()
    COLON = enum.auto()
    COMMA_OR_END = enum.auto()


class JsonScanner:
    """Scans one value, from its first character to its last."""

    __slots__ = ("_expect", "_in_string", "_is_key", "_open", "status")

    def __init__(self) -> None:
        self.status = ScanStatus.MORE
        self._expect = _Expect.VALUE
        #: Closing brackets that are due, the outermost first.
        self._open: list[str] = []
        self._in_string = False
        self._is_key = False

    def feed(self, text: str, *, is_last: bool = False) -> tuple[int, str]:
        """How many characters of `text` are consumed, and what they come to.

        The rest is to be fed again with more behind it, unless `status` says that the value is done or none. is_last:
        nothing follows; a value that is cut short is consumed, and stays undone.
        """
        at, parts = 0, []
        while at < len(text) and self.status is ScanStatus.MORE:
            piece, num_consumed = (
                self._string(text, at, is_last) if self._in_string else self._token(text, at, is_last)
            )
            if not num_consumed:
                break
            parts.append(piece)
            at += num_consumed
        return at, "".join(parts)

    def _string(self, text: str, at: int, is_last: bool) -> tuple[str, int]:
        char = text[at]
        if char == '"':
            self._in_string = False
            self._expect = _Expect.COLON if self._is_key else self._after_value()
            return char, 1
        if found := _STRING_RUN.match(text, at):
            return found[0], len(found[0])
        if char != "\\":
            return json.dumps(char)[1:-1], 1
        if found := _ESCAPE.match(text, at):
            return found[0], len(found[0])
        begun = _ESCAPE_BEGINNING.match(text, at)
        if begun is None or begun.end() < len(text):
            return self._invalid()
        return (begun[0], len(begun[0])) if is_last else ("", 0)

    def _token(self, text: str, at: int, is_last: bool) -> tuple[str, int]:
        if found := _SPACE.match(text, at):
            return found[0], len(found[0])
        char, expect = text[at], self._expect
        if char in "}]":
            return self._close(char)
        if expect is _Expect.COLON or expect is _Expect.COMMA_OR_END:
            return self._separator(char)
        if char == '"':
            self._in_string = True
            self._is_key = expect in (_Expect.KEY, _Expect.KEY_OR_END)
            return char, 1
        if expect in (_Expect.KEY, _Expect.KEY_OR_END):
            return self._invalid()
        if char in "{[":
            self._open.append("}" if char == "{" else "]")
            self._expect = _Expect.KEY_OR_END if char == "{" else _Expect.VALUE_OR_END
            return char, 1
        return self._literal(text, at, is_last)

    def _literal(self, text: str, at: int, is_last: bool) -> tuple[str, int]:
        found = _LITERAL_RUN.match(text, at)
        if found is None:
            return self._invalid()
        if found.end() == len(text) and not is_last:
            return "", 0
        if _LITERAL.fullmatch(found[0]):
            self._expect = self._after_value()
        elif found.end() < len(text) or not _LITERAL_BEGINNING.fullmatch(found[0]):
            return self._invalid()
        return found[0], len(found[0])

    def _close(self, char: str) -> tuple[str, int]:
        may_end = self._expect in (_Expect.COMMA_OR_END, _Expect.KEY_OR_END, _Expect.VALUE_OR_END)
        if not may_end or not self._open or self._open[-1] != char:
            return self._invalid()
        self._open.pop()
        self._expect = self._after_value()
        return char, 1

    def _separator(self, char: str) -> tuple[str, int]:
        if self._expect is _Expect.COLON and char == ":":
            self._expect = _Expect.VALUE
        elif self._expect is _Expect.COMMA_OR_END and char == ",":
            self._expect = _Expect.KEY if self._open[-1] == "}" else _Expect.VALUE
        else:
            return self._invalid()
        return char, 1

    def _after_value(self) -> _Expect:
        if not self._open:
            self.status = ScanStatus.DONE
        return _Expect.COMMA_OR_END

    def _invalid(self) -> tuple[str, int]:
        self.status = ScanStatus.INVALID
        return "", 0
