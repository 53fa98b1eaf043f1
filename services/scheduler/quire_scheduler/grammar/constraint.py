"""What an output must match, and where reasoning stands before it: data, hashable, without logic."""

from __future__ import annotations

from dataclasses import dataclass

# Names of the contract's fields.
KINDS = ("json_schema", "json_object", "regex", "choice", "grammar", "structural_tag")


@dataclass(frozen=True, slots=True)
class Constraint:
    """A language that the output must be a word of. Equal constraints share what was compiled.

    kind: one of KINDS. text: the schema, expression, grammar or tag. choices: of `choice`.
    """

    kind: str
    text: str = ""
    choices: tuple[str, ...] = ()
    disable_any_whitespace: bool = False
    whitespace_pattern: str | None = None

    @property
    def field(self) -> str:
        """What a refusal names."""
        return f"constraint.{self.kind}"


@dataclass(frozen=True, slots=True)
class ReasoningSpan:
    """The part of the output in which the model reasons. Without start ids, or with `starts_open`, it is open at once.

    max_tokens: then the end ids are forced; None: no limit.
    """

    end_token_ids: tuple[int, ...]
    start_token_ids: tuple[int, ...] = ()
    starts_open: bool = False
    max_tokens: int | None = None
