"""Llama 4, and Llama 3.2 as trained: the whole answer is a Python list of calls, `[f(a=1, b="x"), g()]`."""

from __future__ import annotations

import ast
import json
import warnings
from collections.abc import Sequence
from typing import Any

from quire_gateway.chat.call import Tool
from quire_gateway.parsing.grammar import CallGrammar, Json, Optional, Part
from quire_gateway.parsing.reader import Step
from quire_gateway.parsing.tools.base import ToolFormat, ToolParser, is_name, parameter_schema

START_TAGS = ("<|python_start|>", "<|python_tag|>")
END_TAG = "<|python_end|>"
_CONSTANTS = {"true": True, "false": False, "null": None}


class PythonicParser(ToolParser):
    """A call is handed out when it is whole. Only calls of known names with named literal arguments are ones."""

    def script(self) -> Step[None]:
        """See ScriptedParser."""
        consumed = yield from self.space()
        consumed += yield from self.literal(*START_TAGS)
        consumed += yield from self.space()
        if (yield from self.next_char()) == "[":
            consumed = yield from self._list(consumed)
        self.text(consumed)
        yield from self.until(write=self.text)

    def _list(self, consumed: str) -> Step[str]:
        """The list; what was consumed of it and belongs to no call."""
        consumed += self.take(1)
        while True:
            consumed += yield from self.space()
            text = yield from self._call_text()
            parsed = parse_call(text)
            if parsed is None or parsed[0] not in self.tools:
                return consumed + text
            self.begin(parsed[0])
            self.arguments(json.dumps(parsed[1], ensure_ascii=False))
            self.end()
            consumed = yield from self.space()
            if not (yield from self.literal(",")):
                break
            consumed += ","
        if (yield from self.literal("]")):
            consumed = yield from self.space()
            return "" if (yield from self.literal(END_TAG)) else consumed
        return consumed

    def _call_text(self) -> Step[str]:
        """From a name to the bracket that closes its call, or as far as it may be one."""
        text = yield from self.before(lambda char: is_name(char))
        if not text or (yield from self.next_char()) != "(":
            return text
        return text + (yield from self._brackets())

    def _brackets(self) -> Step[str]:
        """From an opening bracket to the one that closes it, or to the end of the text."""
        depth, quote, at = 0, "", 0
        while True:
            while at < len(self.buffer):
                char = self.buffer[at]
                if quote and char == "\\":
                    # What is escaped may come with the next piece.
                    at += 1
                elif quote:
                    quote = "" if char == quote else quote
                elif char in "\"'":
                    quote = char
                elif char in "([{":
                    depth += 1
                elif char in ")]}":
                    depth -= 1
                at += 1
                if depth == 0:
                    return self.take(at)
            if self.is_ended:
                return self.take(len(self.buffer))
            yield


def parse_call(text: str) -> tuple[str, dict[str, Any]] | None:
    """Name and arguments of `name(key=literal, ...)`; None if `text` is none such."""
    try:
        with warnings.catch_warnings():
            # Unknown escapes in strings are kept as they are.
            warnings.simplefilter("ignore")
            call = ast.parse(text.strip(), mode="eval").body
        if not isinstance(call, ast.Call) or call.args:
            return None
        values = {keyword.arg: _literal(keyword.value) for keyword in call.keywords}
        json.dumps(values, allow_nan=False).encode()
        name = ast.unparse(call.func)
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return None
    named = {key: value for key, value in values.items() if key is not None}
    return (name, named) if len(named) == len(values) and is_name(name) else None


def _literal(node: ast.expr) -> Any:
    if isinstance(node, ast.Name) and node.id in _CONSTANTS:
        return _CONSTANTS[node.id]
    if isinstance(node, ast.List | ast.Tuple):
        return [_literal(item) for item in node.elts]
    if isinstance(node, ast.Dict):
        return {_key(key): _literal(value) for key, value in zip(node.keys, node.values, strict=True)}
    value = ast.literal_eval(node)
    if isinstance(value, str):
        # Lone surrogates are no text.
        value.encode()
    return value


def _key(node: ast.expr | None) -> str:
    value = _literal(node) if node is not None else None
    if not isinstance(value, str):
        raise ValueError("JSON objects have texts as keys")
    return value


class PythonicFormat(ToolFormat):
    """See the module."""

    name = "pythonic"
    markers = (*START_TAGS, END_TAG)

    def parser(self, tools: Sequence[Tool]) -> ToolParser:
        """A parser for one choice."""
        return PythonicParser(tools)

    def grammar(self, tools: Sequence[Tool], template: str) -> CallGrammar:
        """The grammar of calls: required parameters first; values as JSON, which the parser takes."""
        calls = [(f"{tool.name}(", *_parameter_parts(tool), ")") for tool in tools]
        return CallGrammar(calls=calls, prefix="[", separator=", ", suffix="]")


def _parameter_parts(tool: Tool) -> list[Part]:
    required = [name for name in tool.parameters.get("properties", {}) if _is_required(tool, name)]
    others = [name for name in tool.parameters.get("properties", {}) if not _is_required(tool, name)]
    parts: list[Part] = []
    for number, name in enumerate(required):
        parts += [f"{', ' if number else ''}{name}=", _value(tool, name)]
    if required:
        parts += [Optional([f", {name}=", _value(tool, name)]) for name in others]
    elif others:
        # Nested, so that separators stand between: each optional one only behind the one before it.
        nested: list[Part] = []
        for number, name in reversed(list(enumerate(others))):
            nested = [Optional([f"{', ' if number else ''}{name}=", _value(tool, name), *nested])]
        parts += nested
    return parts


def _is_required(tool: Tool, name: str) -> bool:
    return name in tool.parameters.get("required", ())


def _value(tool: Tool, name: str) -> Json:
    shared = {key: tool.parameters[key] for key in ("$defs", "definitions") if key in tool.parameters}
    return Json({**shared, **parameter_schema(tool, name)})
