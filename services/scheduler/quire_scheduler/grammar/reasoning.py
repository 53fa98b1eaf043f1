"""Follows one sequence's output to where its reasoning ends, and says which token a spent budget forces.

Plain bookkeeping over token ids; knows no grammar and no mask.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from quire_scheduler.grammar.constraint import ReasoningSpan


class Phase(Enum):
    """Where the output stands."""

    BEFORE = "before"
    INSIDE = "inside"
    AFTER = "after"


class ReasoningTracker:
    """One sequence's span. must_start: it opens with the output's first tokens or never, since what is no reasoning is
    constrained; otherwise it opens wherever its start tokens come."""

    def __init__(self, span: ReasoningSpan, *, must_start: bool) -> None:
        self._span = span
        self._must_start = must_start
        self._num_inside = 0
        # The newest tokens, as many as a marker has.
        self._recent: list[int] = []
        self._num_seen = 0
        self.phase = Phase.BEFORE if span.start_token_ids and not span.starts_open else Phase.INSIDE

    @property
    def is_opening(self) -> bool:
        """The output so far is a beginning of the start tokens, and they are all that it can still be."""
        return self.phase is Phase.BEFORE and self._must_start and self._num_seen > 0

    def first_start_token(self) -> int | None:
        """The token that would open the span now, beside whatever else may come; None if none can."""
        if self.phase is Phase.BEFORE and (self._num_seen == 0 or not self._must_start):
            return self._span.start_token_ids[0]
        return None

    def advance(self, token_id: int) -> bool:
        """One more token. False: it is no part of the reasoning or its markers, but of what comes after."""
        if self.phase is Phase.AFTER:
            return False
        self._recent.append(token_id)
        self._num_seen += 1
        if self.phase is Phase.BEFORE:
            return self._advance_before()
        self._num_inside += 1
        end = self._span.end_token_ids
        del self._recent[: -len(end)]
        if tuple(self._recent) == end:
            self.phase = Phase.AFTER
        return True

    def forced_token(self) -> int | None:
        """The only token that may come next; None: any."""
        if self.is_opening:
            return self._span.start_token_ids[self._num_seen]
        limit = self._span.max_tokens
        if self.phase is not Phase.INSIDE or limit is None or self._num_inside < limit:
            return None
        return self._span.end_token_ids[_overlap(self._recent, self._span.end_token_ids)]

    def _advance_before(self) -> bool:
        start = self._span.start_token_ids
        del self._recent[: -len(start)]
        if tuple(self._recent) == start:
            self.phase = Phase.INSIDE
            self._recent.clear()
            return True
        if self._must_start and self._recent[0] != start[0]:
            self.phase = Phase.AFTER
            return False
        return True


def _overlap(tokens: Sequence[int], marker: Sequence[int]) -> int:
    """How many tokens at the end of `tokens` are the beginning of `marker`."""
    for size in range(min(len(tokens), len(marker) - 1), 0, -1):
        if list(tokens[-size:]) == list(marker[:size]):
            return size
    return 0
