"""Grammars of calls, in the syntax that a model writes them.

One job: from how a tool format writes a call to a grammar in Lark's syntax, for outputs that must be calls and for
outputs in which only calls are bound. Knows neither JSON bodies nor who compiles it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

#: How constrained JSON is written: as models were taught, and without whitespace that could go on for ever.
_JSON_STYLE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
ANYTHING = "/(.|\\n)*/"


class Json(NamedTuple):
    """JSON that matches a schema."""

    schema: Mapping[str, Any]


class Until(NamedTuple):
    """Any text up to the first `end`, and that."""

    end: str


class Optional(NamedTuple):
    """Parts that may be left out together."""

    parts: Sequence[Part]


class Either(NamedTuple):
    """One of several texts."""

    texts: Sequence[str]


Part = str | Json | Until | Optional | Either


@dataclass(frozen=True, slots=True, kw_only=True)
class CallGrammar:
    """How calls are written: prefix, then calls with separators between them, then suffix.

    calls: one per tool, each beginning with a text. trigger: the text with which calls begin inside of other text
    (prefix, or else each call, begins with it); empty: calls are all of the output or none of it.
    """

    calls: Sequence[Sequence[Part]]
    prefix: str = ""
    separator: str = ""
    suffix: str = ""
    trigger: str = ""
    #: What may stand in front of the calls.
    lead: str = ""
    #: The model never makes more than one call.
    is_single: bool = False

    def forced(self, special_tokens: Mapping[str, int], *, is_parallel: bool) -> str:
        """The grammar of outputs that are one call, or with is_parallel one or more.

        special_tokens: ids of the vocabulary's special tokens by their texts.
        """
        writer = GrammarWriter(special_tokens)
        calls = self._list(writer, writer.either(self.calls), is_parallel)
        lead = f"({writer.text(self.lead)})? " if self.lead else ""
        return writer.grammar(f"start: {lead}{calls}")

    def or_json(
        self, schema: Mapping[str, Any], special_tokens: Mapping[str, int], *, is_parallel: bool
    ) -> str:
        """The grammar of outputs that are calls, or else JSON that matches the schema."""
        writer = GrammarWriter(special_tokens)
        calls = self._list(writer, writer.either(self.calls), is_parallel)
        lead = f"({writer.text(self.lead)})? " if self.lead else ""
        return writer.grammar(f"start: {lead}{calls} | {writer.part(Json(schema))}")

    def free(self, special_tokens: Mapping[str, int], *, is_parallel: bool) -> str:
        """The grammar of outputs that are any text, in which what begins as a call must be one."""
        writer = GrammarWriter(special_tokens)
        call = writer.either(self.calls)
        if not self.trigger:
            first = re.escape((self.prefix or str(self.calls[0][0]))[0])
            calls = self._list(writer, call, is_parallel)
            return writer.grammar(f"start: {calls} | /([^{first}](.|\\n)*)?/")
        if self.prefix:
            begun = self._list(writer, call, is_parallel, prefix=self.prefix.removeprefix(self.trigger))
        else:
            rest = [[str(parts[0]).removeprefix(self.trigger), *parts[1:]] for parts in self.calls]
            begun = writer.either(rest)
        writer.rules.append(writer.trigger(self.trigger))
        repeat = "*" if is_parallel else "?"
        return writer.grammar(f"start: (begun){repeat} tail", f"begun: trigger {begun}", f"tail: {ANYTHING}")

    def _list(self, writer: GrammarWriter, call: str, is_parallel: bool, prefix: str | None = None) -> str:
        parts = [writer.text(self.prefix if prefix is None else prefix), call]
        if is_parallel and not self.is_single:
            parts.append(f"({writer.text(self.separator)} {call})*")
        parts.append(writer.text(self.suffix))
        return " ".join(part for part in parts if part)


@dataclass(slots=True)
class GrammarWriter:
    """Collects rules in Lark's syntax."""

    special_tokens: Mapping[str, int]
    rules: list[str] = field(default_factory=list)

    def text(self, text: str) -> str:
        """A literal; special tokens in it stand as tokens, since their texts' bytes could not be sampled."""
        if not text:
            return ""
        found = [token for token in self.special_tokens if token in text]
        if not found:
            return _quoted(text)
        cut = "|".join(re.escape(token) for token in sorted(found, key=len, reverse=True))
        pieces = [piece for piece in re.split(f"({cut})", text) if piece]
        return " ".join(
            f"<[{self.special_tokens[piece]}]>" if piece in self.special_tokens else _quoted(piece)
            for piece in pieces
        )

    def trigger(self, text: str) -> str:
        """The rule of the text up to a call and its first characters."""
        if text in self.special_tokens:
            return f"trigger: {ANYTHING} <[{self.special_tokens[text]}]>"
        return f"trigger[lazy]: {ANYTHING} {_quoted(text)}"

    def either(self, sequences: Sequence[Sequence[Part]]) -> str:
        """A new rule: one of the sequences."""
        return self.rule(" | ".join(self.sequence(parts) for parts in sequences))

    def sequence(self, parts: Sequence[Part]) -> str:
        """The parts one after the other."""
        return " ".join(written for part in parts if (written := self.part(part))) or '""'

    def part(self, part: Part) -> str:
        """One part."""
        if isinstance(part, str):
            return self.text(part)
        if isinstance(part, Json):
            styled = {**part.schema, "x-guidance": _JSON_STYLE}
            return self.rule("%json " + json.dumps(styled, ensure_ascii=False))
        if isinstance(part, Until):
            return self.rule(ANYTHING, f"[suffix={_quoted(part.end)}]")
        if isinstance(part, Either):
            return "(" + " | ".join(self.text(text) for text in part.texts) + ")"
        return f"({self.sequence(part.parts)})?"

    def rule(self, body: str, options: str = "") -> str:
        """A new rule; its name."""
        name = f"rule_{len(self.rules)}"
        self.rules.append(f"{name}{options}: {body}")
        return name

    def grammar(self, *first: str) -> str:
        """All of it."""
        return "\n".join((*first, *self.rules)) + "\n"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def closed_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of a call's arguments: an object, without properties that it does not list."""
    closed: dict[str, Any] = {"type": "object", **schema}
    if "properties" not in closed:
        return closed
    return {"additionalProperties": False, **closed}
