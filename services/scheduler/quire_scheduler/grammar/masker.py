"""One sequence under a constraint, a reasoning span or both: takes its tokens in, says which may come next.

Runs on the mask thread, except for its making; one thread at a time. Knows no step, slot or message.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from llguidance import LLMatcher
from numpy.typing import NDArray

from quire_scheduler.errors import InvalidRequest, SchedulerError
from quire_scheduler.grammar.constraint import Constraint, ReasoningSpan
from quire_scheduler.grammar.reasoning import Phase, ReasoningTracker

Words = NDArray[np.uint32]
EVERYTHING = np.uint32(0xFFFFFFFF)


class SequenceMasker:
    """What one sequence may sample next.

    `ending_ids` (end of sequence, stop ids) come only where the constraint's text is complete, or there is none.
    """

    def __init__(
        self,
        ending_ids: Collection[int],
        constraint: Constraint | None = None,
        matcher: LLMatcher | None = None,
        span: ReasoningSpan | None = None,
    ) -> None:
        """matcher: of the constraint, for this sequence alone."""
        self._ending_ids = sorted(ending_ids)
        self._constraint = constraint
        self._matcher = matcher
        self._tracker = None if span is None else ReasoningTracker(span, must_start=matcher is not None)
        self._num_consumed = 0

    @property
    def is_done(self) -> bool:
        """Nothing more depends on it: only a reasoning span was to be followed, and that is closed."""
        return self._matcher is None and (self._tracker is None or self._tracker.phase is Phase.AFTER)

    @property
    def is_constrained(self) -> bool:
        """Whether the output must match something."""
        return self._matcher is not None

    def consume(self, output_token_ids: list[int], num_tokens: int) -> None:
        """Take in the output's first `num_tokens` tokens, as far as that is still to do. Raises InvalidRequest if they
        do not fit."""
        for token_id in output_token_ids[self._num_consumed : num_tokens]:
            self._num_consumed += 1
            if self._tracker is not None and self._tracker.advance(token_id):
                continue
            if self._matcher is not None and not self._matcher.consume_token(token_id):
                raise self._failure(f"does not permit output token {self._num_consumed}")

    def fill(self, row: Words) -> None:
        """Set the bits of the tokens that may come after those taken in. row: zeros. Raises InvalidRequest if none may,
        or finding out took more than the compiler's limits."""
        tracker = self._tracker
        forced = None if tracker is None else tracker.forced_token()
        if forced is not None:
            _set(row, forced)
        elif tracker is not None and tracker.phase is Phase.INSIDE:
            row.fill(EVERYTHING)
            if self._matcher is not None:
                # Ending here would leave out what the constraint asks for.
                self._clear_endings(row)
        elif self._matcher is None:
            row.fill(EVERYTHING)
        else:
            self._fill_from_grammar(self._matcher, row)
            start = None if tracker is None else tracker.first_start_token()
            if start is not None:
                _set(row, start)

    def _fill_from_grammar(self, matcher: LLMatcher, row: Words) -> None:
        matcher.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)
        if matcher.is_error():
            raise self._failure("goes beyond the limits of what can be matched")
        is_complete = matcher.is_accepting()
        for token_id in self._ending_ids:
            if is_complete:
                _set(row, token_id)
            else:
                _clear(row, token_id)
        if not row.any():
            raise self._failure("leaves no token that could come next")

    def _clear_endings(self, row: Words) -> None:
        for token_id in self._ending_ids:
            _clear(row, token_id)

    def _failure(self, what: str) -> SchedulerError:
        assert self._constraint is not None and self._matcher is not None
        field, detail = self._constraint.field, self._matcher.get_error().partition("\n")[0]
        message = f"{field} {what}" + (f": {detail}" if detail else "")
        return InvalidRequest(field, "a constraint that can be followed", "", message=message[:600])


def _set(row: Words, token_id: int) -> None:
    row[token_id >> 5] |= np.uint32(1 << (token_id & 31))


def _clear(row: Words, token_id: int) -> None:
    row[token_id >> 5] &= np.uint32(~(1 << (token_id & 31)) & 0xFFFFFFFF)
