"""Calls that are JSON objects with a name and arguments, as most models write them.

One job: read one such object, hand out its arguments as they come, and put it back where it turns out to be none.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import Final

from quire_gateway.chat.call import Tool
from quire_gateway.parsing.grammar import Json, Part, closed_schema
from quire_gateway.parsing.reader import Step
from quire_gateway.parsing.tools.base import ToolParser, is_name

NAME_KEYS: Final = frozenset({"name"})
ARGUMENT_KEYS: Final = frozenset({"arguments", "parameters"})


class JsonCallParser(ToolParser):
    """Adds the step that reads one call object."""

    def call_object(self, known: Collection[str] | None = None) -> Step[bool]:
        """Read `{"name": ..., "arguments": {...}}`, keys in any order; True if a call began.

        known: names that are calls; None: all. If no call began, nothing is consumed. If one began and breaks off, it
        ends, and what follows is not consumed.
        """
        attempt = _Attempt(self, known)
        yield from attempt.read()
        if not attempt.has_begun:
            self.buffer = "".join(attempt.raw) + self.buffer
            return False
        self.end()
        return True

    def call_arguments(self, name: str) -> Step[bool]:
        """Read an object that is a call's arguments. False: it is none, and nothing is consumed."""
        if (yield from self.next_char()) != "{":
            return False
        self.begin(name)
        yield from self.json_value(self.arguments)
        self.end()
        return True


class _Attempt:
    """One object. `raw` is what was consumed, in case that it is no call."""

    def __init__(self, parser: JsonCallParser, known: Collection[str] | None) -> None:
        self._parser, self._known = parser, known
        self.raw: list[str] = []
        self.has_begun = False
        self._name: str | None = None
        #: Arguments that came before the name.
        self._early: list[str] | None = None
        self._has_arguments = False

    def read(self) -> Step[None]:
        """Read the object as far as it is one."""
        if not (yield from self._is_object()):
            return
        if self.has_begun:
            return
        if self._name is not None and self._is_known():
            self._begin()
            if not self._has_arguments:
                self._parser.arguments("{}")

    def _is_object(self) -> Step[bool]:
        if not (yield from self._expect("{")):
            return False
        while True:
            key = yield from self._string()
            if key is None or not (yield from self._expect(":")):
                return False
            if not (yield from self._value(key)):
                return False
            if (yield from self._expect("}")):
                return True
            if not (yield from self._expect(",")):
                return False

    def _value(self, key: str) -> Step[bool]:
        if key in NAME_KEYS and self._name is None:
            self._name = yield from self._string()
            if self._name is None or not self._is_known():
                return False
            if self._early is not None:
                self._begin()
            return True
        if key in ARGUMENT_KEYS and not self._has_arguments:
            self._has_arguments = True
            return (yield from self._arguments())
        return (yield from self._skip())

    def _arguments(self) -> Step[bool]:
        yield from self._space()
        char = yield from self._parser.next_char()
        if char != "{":
            return (yield from self._unusual_arguments())
        if self._name is not None:
            self._begin()
            return (yield from self._parser.json_value(self._parser.arguments))
        self._early = []
        return (yield from self._skip(self._early))

    def _unusual_arguments(self) -> Step[bool]:
        """null, or the object as JSON text in a string."""
        parts: list[str] = []
        if not (yield from self._skip(parts)):
            return False
        value = _loaded("".join(parts))
        if isinstance(value, str):
            value = _loaded(value)
        if not (value is None or isinstance(value, dict)):
            return False
        self._early = [json.dumps(value or {})]
        if self._name is not None:
            self._begin()
        return True

    def _begin(self) -> None:
        assert self._name is not None, "a call has a name"
        self.has_begun = True
        self._parser.begin(self._name)
        self._parser.arguments("".join(self._early or ()))

    def _is_known(self) -> bool:
        return is_name(self._name) and (self._known is None or self._name in self._known)

    # ---- Steps that remember what they consumed ----------------------------------------------------------------

    def _space(self) -> Step[None]:
        self.raw.append((yield from self._parser.space()))

    def _expect(self, char: str) -> Step[bool]:
        yield from self._space()
        if (yield from self._parser.next_char()) != char:
            return False
        self.raw.append(self._parser.take(1))
        return True

    def _string(self) -> Step[str | None]:
        yield from self._space()
        if (yield from self._parser.next_char()) != '"':
            return None
        parts: list[str] = []
        if not (yield from self._skip(parts)):
            return None
        value: str = json.loads("".join(parts))
        return value

    def _skip(self, parts: list[str] | None = None) -> Step[bool]:
        """Any JSON value."""
        yield from self._space()
        write = parts.append if parts is not None else _forget
        return (yield from self._parser.json_value(write, self.raw.append))


def _forget(text: str) -> None:
    pass


def _loaded(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        # A string that is no JSON is no arguments.
        return False


def call_parts(tool: Tool, *, begin: str, arguments_key: str = "arguments", end: str = "") -> Sequence[Part]:
    """How the grammar writes one call object."""
    head = f'"name": "{tool.name}", "{arguments_key}": '
    # The brace stands alone, as it does in the grammar of any JSON that is allowed instead.
    return (begin + "{", head, Json(closed_schema(tool.parameters)), "}" + end)
