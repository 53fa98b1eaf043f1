"""Structural tags as grammar rules: free text in which begin tags start parts that match a schema.

Two forms are read: `structures` with `triggers`, and `format` with a tree of types. Names nothing but its own field.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from quire_scheduler.errors import InvalidRequest

JsonPart = Callable[[Any], str]
# A text as terminals; whether all of it is one lexeme (special tokens are none).
Literal = Callable[[str], tuple[str, bool]]
_TEXT = "/(.|\\n)*/"


def structural_tag_rules(
    document: Mapping[str, Any], field: str, json_part: JsonPart, literal: Literal
) -> str:
    """Lark rules, `start` among them. json_part, literal: schema, text as parts of one. Raises InvalidRequest."""
    rules = _Rules(field, json_part, literal)
    if "format" in document:
        start = rules.of_format(document["format"])
    elif "structures" in document:
        tags = [
            _old_tag(structure, field) for structure in _list(document["structures"], field, "structures")
        ]
        start = rules.triggered(tags, _texts(document.get("triggers"), field, "triggers"))
    else:
        raise _wrong(field, "needs `format`, or `structures` with `triggers`")
    return f"start: {start}\n" + "\n".join(rules.lines)


class _Rules:
    """Collects rules; every method answers an expression that uses them."""

    def __init__(self, field: str, json_part: JsonPart, literal: Literal) -> None:
        self.lines: list[str] = []
        self._field = field
        self._json_part = json_part
        self._literal = literal
        self._types: dict[str, Callable[[Mapping[str, Any]], str]] = {
            "const_string": lambda node: self._spelled(self._text(node, "value")),
            "json_schema": lambda node: self._json_part(_get(node, "json_schema", self._field)),
            "regex": lambda node: _regex(self._text(node, "pattern")),
            "any_text": lambda node: self._named(_TEXT),
            "sequence": lambda node: self._joined(node, " "),
            "or": lambda node: self._joined(node, " | "),
            "tag": self._tag,
            "triggered_tags": self._triggered_tags,
            "tags_with_separator": self._separated,
        }

    def of_format(self, node: Any) -> str:
        """The expression of a node of the tree, by its type."""
        if not isinstance(node, dict) or node.get("type") not in self._types:
            kind = node.get("type") if isinstance(node, dict) else node
            raise _wrong(self._field, f"has a format of type {kind!r}; known: {', '.join(self._types)}")
        return self._types[node["type"]](node)

    def triggered(
        self,
        tags: Sequence[Mapping[str, Any]],
        triggers: Sequence[str],
        at_least_one: bool = False,
        stop_after_first: bool = False,
    ) -> str:
        """Free text until a trigger, then one of the tags that begin with it, and so on."""
        if not tags or not triggers:
            raise _wrong(self._field, "needs at least one tag and one trigger")
        text = self._named(_TEXT)
        options = []
        for trigger in triggers:
            matching = [tag for tag in tags if tag["begin"].startswith(trigger)]
            if not matching:
                raise _wrong(self._field, f"has a trigger that no tag begins with: {trigger!r}")
            spelled, is_lexeme = self._literal(trigger)
            # Lazy: it ends at the first trigger, where the tag must follow. Free text never holds a special token.
            head = self._rule(f"{_TEXT} {spelled}", "[lazy]" if is_lexeme else "")
            options += [f"{head} {self._after(tag, trigger)}" for tag in matching]
        for tag in tags:
            if not any(tag["begin"].startswith(trigger) for trigger in triggers):
                raise _wrong(self._field, f"has a tag that no trigger starts: {tag['begin']!r}")
        one = self._rule(" | ".join(options))
        if stop_after_first:
            return one if at_least_one else f"({one} | {text})"
        return f"{one}{'+' if at_least_one else '*'} {text}"

    def _after(self, tag: Mapping[str, Any], trigger: str) -> str:
        begin = tag["begin"][len(trigger) :]
        parts = [self._spelled(begin)] if begin else []
        parts.append(self._group(self.of_format(_get(tag, "content", self._field))))
        end = _end_of(tag, self._field)
        return " ".join(parts + ([self._spelled(end)] if end else []))

    def _tag(self, node: Mapping[str, Any]) -> str:
        return self._after({**node, "begin": self._text(node, "begin")}, "")

    def _triggered_tags(self, node: Mapping[str, Any]) -> str:
        tags = _list(node.get("tags"), self._field, "tags")
        for tag in tags:
            self._text(tag, "begin")
        triggers = _texts(node.get("triggers"), self._field, "triggers")
        return self._group(
            self.triggered(tags, triggers, bool(node.get("at_least_one")), bool(node.get("stop_after_first")))
        )

    def _separated(self, node: Mapping[str, Any]) -> str:
        tags = [self._tag(tag) for tag in _list(node.get("tags"), self._field, "tags")]
        one = self._rule(" | ".join(tags))
        separator = node.get("separator", "")
        between = f"{self._spelled(separator)} {one}" if separator else one
        many = one if node.get("stop_after_first") else f"{one} ({between})*"
        return f"({many})" if node.get("at_least_one") else f"({many})?"

    def _joined(self, node: Mapping[str, Any], glue: str) -> str:
        parts = [
            self._group(self.of_format(part)) for part in _list(node.get("elements"), self._field, "elements")
        ]
        return self._group(glue.join(parts))

    def _group(self, expression: str) -> str:
        """As a rule of its own, so that no operator reaches into it."""
        return self._rule(expression)

    def _spelled(self, text: str) -> str:
        return self._literal(text)[0]

    def _named(self, pattern: str) -> str:
        return self._rule(pattern)

    def _rule(self, expression: str, attributes: str = "") -> str:
        name = f"part_{len(self.lines)}"
        self.lines.append(f"{name}{attributes}: {expression}")
        return name

    def _text(self, node: Any, name: str) -> str:
        value = _get(node, name, self._field)
        if not isinstance(value, str) or not value:
            raise _wrong(self._field, f"needs a text in `{name}`")
        return value


def _old_tag(structure: Any, field: str) -> dict[str, Any]:
    schema = _get(structure, "schema", field)
    begin = _get(structure, "begin", field)
    if not isinstance(begin, str) or not begin:
        raise _wrong(field, "needs a text in `begin`")
    content = {"type": "json_schema", "json_schema": schema}
    return {"begin": begin, "content": content, "end": structure.get("end", "")}


def _end_of(tag: Mapping[str, Any], field: str) -> str:
    end = tag.get("end", "")
    if not isinstance(end, str):
        raise _wrong(field, "needs a text in `end`")
    return end


def _get(node: Any, name: str, field: str) -> Any:
    if not isinstance(node, dict) or name not in node:
        raise _wrong(field, f"lacks `{name}`")
    return node[name]


def _list(value: Any, field: str, name: str) -> list[Any]:
    if not isinstance(value, list) or not value:
        raise _wrong(field, f"needs a list in `{name}`")
    return value


def _texts(value: Any, field: str, name: str) -> list[str]:
    texts = _list(value, field, name)
    if not all(isinstance(text, str) and text for text in texts):
        raise _wrong(field, f"needs texts in `{name}`")
    return texts


def _regex(pattern: str) -> str:
    return "/" + pattern.replace("/", "\\/") + "/"


def _wrong(field: str, what: str) -> InvalidRequest:
    return InvalidRequest(field, "a structural tag", "", message=f"{field} {what}"[:600])
