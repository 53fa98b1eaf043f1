"""A constraint as a grammar of the compiler: Lark with `%json` parts. Checks the form, compiles nothing.

Forcing is off in every grammar: a text may be tokenised in any way that spells it, as the model likes best.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from llguidance import LLMatcher
from llguidance.gbnf_to_lark import any_to_lark

from quire_scheduler.errors import InvalidRequest
from quire_scheduler.grammar.constraint import Constraint
from quire_scheduler.grammar.structural_tag import structural_tag_rules

_OPTIONS = '%llguidance {"no_forcing": true}\n'


#: Small models that may write any whitespace write nothing else up to their limit; an indented document needs no more.
BOUNDED_WHITESPACE = r"[ \t\r\n]{0,32}"


def grammar_of(constraint: Constraint, special_token_ids: Mapping[str, int]) -> str:
    """The compiler's text. Raises InvalidRequest naming the constraint's field.

    special_token_ids: by text. Such a text in a structural tag is the token, which no other text can spell.
    """
    if constraint.kind in ("json_schema", "json_object"):
        schema = {"type": "object"} if constraint.kind == "json_object" else json_document(constraint)
        return _OPTIONS + f"start: {json_part(schema, constraint)}"
    if constraint.kind == "regex":
        return _OPTIONS + regex_lark(constraint.text)
    if constraint.kind == "choice":
        texts = " | ".join(json.dumps(text, ensure_ascii=False) for text in constraint.choices)
        return _OPTIONS + f"start: {texts}"
    if constraint.kind == "structural_tag":
        document = json_document(constraint)
        return _OPTIONS + structural_tag_rules(
            document,
            constraint.field,
            lambda schema: json_part(schema, constraint),
            lambda text: literal(text, special_token_ids),
        )
    return _OPTIONS + _lark_of(constraint)


def json_document(constraint: Constraint) -> Any:
    """The JSON object in the constraint's text."""
    try:
        document = json.loads(constraint.text)
    except (ValueError, RecursionError) as error:
        raise broken(constraint.field, f"is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise broken(constraint.field, "must be a JSON object")
    return document


def json_part(schema: Mapping[str, Any] | bool, constraint: Constraint) -> str:
    """A `%json` part with the constraint's whitespace. A schema may not bring options of the compiler itself."""
    if isinstance(schema, bool):
        schema = {} if schema else {"not": {}}
    if "x-guidance" in schema:
        raise broken(constraint.field, "uses the keyword x-guidance, which is not supported")
    options: dict[str, Any] = {"whitespace_flexible": not constraint.disable_any_whitespace}
    if not constraint.disable_any_whitespace:
        options["whitespace_pattern"] = constraint.whitespace_pattern or BOUNDED_WHITESPACE
    return "%json " + json.dumps({**schema, "x-guidance": options}, ensure_ascii=False)


def regex_lark(pattern: str) -> str:
    """A grammar of which the pattern is the whole."""
    document = json.loads(LLMatcher.grammar_from_regex(pattern))
    return str(document["grammars"][0]["lark_grammar"])


def literal(text: str, special_token_ids: Mapping[str, int]) -> tuple[str, bool]:
    """A text as terminals, special tokens by their ids; whether it is one lexeme."""
    found = [special for special in special_token_ids if special in text]
    if not found:
        return json.dumps(text, ensure_ascii=False), True
    # Longest first: one special token's text may be part of another's.
    pattern = "(" + "|".join(re.escape(special) for special in sorted(found, key=len, reverse=True)) + ")"
    parts = [
        f"<[{special_token_ids[part]}]>"
        if part in special_token_ids
        else json.dumps(part, ensure_ascii=False)
        for part in re.split(pattern, text)
        if part
    ]
    return " ".join(parts), False


def _lark_of(constraint: Constraint) -> str:
    try:
        return str(any_to_lark(constraint.text))
    except Exception as error:
        # The converter raises whatever it meets; only the text can be wrong.
        raise broken(constraint.field, f"does not parse: {error}") from error


def broken(field: str, what: str) -> InvalidRequest:
    """The refusal of a constraint that is wrong in itself."""
    return InvalidRequest(field, "a constraint that compiles", "", message=f"{field} {what}"[:600])
