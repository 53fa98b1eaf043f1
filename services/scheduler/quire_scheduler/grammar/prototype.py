"""Makes the matcher of a constraint, in whatever process or thread that is. It has limits of size, and none of time."""

from __future__ import annotations

import re
from collections.abc import Sequence

from llguidance import LLMatcher, LLParserLimits

from quire_scheduler.grammar.constraint import Constraint
from quire_scheduler.grammar.language import broken, grammar_of
from quire_scheduler.grammar.vocabulary import Vocabulary, make_tokenizer


class PrototypeMaker:
    """Of one tokenizer and model."""

    def __init__(self, vocabulary: Vocabulary, vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        """Takes a few tenths of a second. Raises ValueError without an end-of-sequence token."""
        self._tokenizer = make_tokenizer(vocabulary, vocab_size, eos_token_ids)
        self._special_token_ids = vocabulary.special_ids_by_text()
        # What one grammar may cost: about 0.2 s to build its lexer, and a few milliseconds a token.
        self._limits = LLParserLimits(
            max_items_in_row=2000,
            initial_lexer_fuel=1_000_000,
            step_lexer_fuel=200_000,
            step_max_items=50_000,
            max_lexer_states=100_000,
            max_grammar_size=500_000,
            verbose_errors=False,
        )

    def grammar_of(self, constraint: Constraint) -> str:
        """The constraint as the compiler's text. Raises InvalidRequest."""
        return grammar_of(constraint, self._special_token_ids)

    def make(self, constraint: Constraint, grammar: str) -> LLMatcher:
        """The matcher of a constraint's grammar, at its beginning. Raises InvalidRequest."""
        matcher = LLMatcher(self._tokenizer, grammar, log_level=0, limits=self._limits)
        if not matcher.is_error():
            # The first mask builds most of the lexer: here it delays nobody, and what is too large shows at once.
            matcher.compute_bitmask()
        if matcher.is_error():
            raise broken(constraint.field, f"does not compile: {_reason(matcher.get_error())}")
        return matcher


def _reason(error: str) -> str:
    """The reason without the compiler's state, listing and place: the lines are not those of the client's text."""
    reason = re.split(r"<non-verbose/>|\n *\d+ \| ", error, maxsplit=1)[0]
    words = " ".join(re.sub(r"^at \d+\(\d+\): ", "", reason).split())
    # What is wrong stands at the end, behind the client's own text.
    return words if len(words) <= 400 else f"{words[:150]} ... {words[-230:]}"
