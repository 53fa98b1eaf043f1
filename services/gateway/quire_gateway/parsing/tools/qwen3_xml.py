"""Qwen3-Coder: `<tool_call><function=name><parameter=key>value</parameter></function></tool_call>`.

Values are bare text; the tool's schema says what they are.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from quire_gateway.chat.call import Tool
from quire_gateway.parsing.grammar import CallGrammar, Either, Json, Optional, Part, Until
from quire_gateway.parsing.json_scanner import JsonScanner, ScanStatus
from quire_gateway.parsing.reader import Step
from quire_gateway.parsing.tools.base import ToolFormat, ToolParser, is_name, parameter_schema

BEGIN, END = "<tool_call>", "</tool_call>"
FUNCTION, FUNCTION_END = "<function=", "</function>"
PARAMETER, PARAMETER_END = "<parameter=", "</parameter>"


class Qwen3XmlParser(ToolParser):
    """A parameter's value is handed out when it is whole. Without the outer tag only known names make a call."""

    def script(self) -> Step[None]:
        """See ScriptedParser."""
        while tag := (yield from self.until(BEGIN, FUNCTION, write=self.text)):
            consumed = tag
            if tag == BEGIN:
                consumed += yield from self.space()
                if not (yield from self.literal(FUNCTION)):
                    self.text(consumed)
                    continue
                consumed += FUNCTION
            name = yield from self.before(lambda char: is_name(char))
            mark = yield from self.literal(">")
            if not (mark and is_name(name) and (tag == BEGIN or name in self.tools)):
                self.text(consumed + name + mark)
                continue
            self.begin(name)
            yield from self._parameters(name)
            space = yield from self.space()
            if not (yield from self.literal(END)):
                self.text(space)

    def _parameters(self, name: str) -> Step[None]:
        """Everything up to the end of the function."""
        self.arguments("{")
        separator = ""
        while True:
            space = yield from self.space()
            if not (yield from self.literal(PARAMETER)):
                break
            key = yield from self.before(lambda char: char not in ">\n")
            if not (yield from self.literal(">")):
                space += PARAMETER + key
                break
            schema = parameter_schema(self.tools.get(name), key)
            self.arguments(f"{separator}{json.dumps(key)}: ")
            separator = ", "
            if not (yield from self._value(schema)):
                self.end()
                return
        is_closed = yield from self.literal(FUNCTION_END)
        if is_closed or not self.is_ended or self.buffer:
            self.arguments("}")
        self.end()
        if not is_closed:
            self.text(space)

    def _value(self, schema: Mapping[str, Any]) -> Step[bool]:
        """One value; False if the text ended in it."""
        parts: list[str] = []
        tag = yield from self.until(PARAMETER_END, FUNCTION_END, write=parts.append)
        text = "".join(parts).removeprefix("\n")
        if tag == FUNCTION_END:
            self.buffer = tag + self.buffer
        if tag:
            self.arguments(json_of(text.removesuffix("\n"), schema))
        else:
            # Cut short, as the client would see it in JSON.
            self.arguments(text if _is_json(text) else json.dumps(text)[:-1])
        return bool(tag)


def json_of(text: str, schema: Mapping[str, Any]) -> str:
    """JSON text of a bare value: what the schema wants where the text is that, else a string."""
    if not schema or schema.get("type") == "string":
        return json.dumps(text, ensure_ascii=False)
    stripped = text.strip()
    if stripped in ("True", "False", "None") and schema.get("type") != "string":
        stripped = {"True": "true", "False": "false", "None": "null"}[stripped]
    return stripped if _is_json(stripped) else json.dumps(text, ensure_ascii=False)


def _is_json(text: str) -> bool:
    scanner = JsonScanner()
    num_consumed, mended = scanner.feed(text, is_last=True)
    return scanner.status is ScanStatus.DONE and num_consumed == len(text) and mended == text


class Qwen3XmlFormat(ToolFormat):
    """See the module."""

    name = "qwen3_xml"
    markers = (BEGIN, END)

    def parser(self, tools: Sequence[Tool]) -> ToolParser:
        """A parser for one choice."""
        return Qwen3XmlParser(tools)

    def grammar(self, tools: Sequence[Tool], template: str) -> CallGrammar:
        """The grammar of calls: parameters in the schema's order, optional ones may be left out."""
        calls = [
            (f"{BEGIN}\n{FUNCTION}{tool.name}>\n", *_parameter_parts(tool), f"{FUNCTION_END}\n{END}")
            for tool in tools
        ]
        return CallGrammar(calls=calls, separator="\n", trigger=BEGIN)


def _parameter_parts(tool: Tool) -> list[Part]:
    required = tool.parameters.get("required", ())
    parts: list[Part] = []
    for name in tool.parameters.get("properties", {}):
        one: list[Part] = [f"{PARAMETER}{name}>\n", *_value_parts(tool, name)]
        parts += one if name in required else [Optional(one)]
    return parts


def _value_parts(tool: Tool, name: str) -> list[Part]:
    schema = parameter_schema(tool, name)
    end = f"\n{PARAMETER_END}\n"
    if not schema or schema.get("type") == "string":
        texts = [text for text in schema.get("enum", ()) if isinstance(text, str)]
        return [Either(texts), end] if texts else [Until(end)]
    # References inside of a parameter's schema point into the whole one's definitions.
    shared = {key: tool.parameters[key] for key in ("$defs", "definitions") if key in tool.parameters}
    return [Json({**shared, **schema}), end]
