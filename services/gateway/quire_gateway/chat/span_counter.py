"""Counts the output tokens in which a model was thinking.

One job: that count, from token ids alone, so that it does not depend on how the output arrived.
"""

from __future__ import annotations

from collections.abc import Sequence

from quire_gateway.sequences import Vocabulary


class SpanCounter:
    """Follows one output. The marks count as thinking where they are part of the output."""

    __slots__ = (
        "_closes",
        "_is_open",
        "_is_settled",
        "_may_repeat",
        "_opens",
        "_recent",
        "_vocabulary",
        "num_tokens",
    )

    def __init__(
        self,
        opens: Sequence[int],
        closes: Sequence[int],
        vocabulary: Vocabulary,
        *,
        starts_open: bool,
        may_repeat: bool = False,
    ) -> None:
        """opens, closes: token ids of the marks. may_repeat: reasoning can begin anywhere, not only at the start."""
        self._opens, self._closes, self._vocabulary = list(opens), list(closes), vocabulary
        self._is_open, self._may_repeat = starts_open, may_repeat
        #: Reasoning cannot begin any more.
        self._is_settled = False
        self._recent: list[int] = []
        self.num_tokens = 0

    def push(self, token_ids: Sequence[int]) -> None:
        """More tokens of the output."""
        if self._is_settled:
            return
        for token_id in token_ids:
            if self._is_open:
                self._think(token_id)
            elif not self._is_settled:
                self._begin(token_id)

    def _think(self, token_id: int) -> None:
        self.num_tokens += 1
        self._recent.append(token_id)
        if self._ends_with(self._closes):
            self._is_open, self._recent = False, []
            self._is_settled = not self._may_repeat

    def _begin(self, token_id: int) -> None:
        if not self._may_repeat and not self._recent and self._is_space(token_id):
            return
        self._recent.append(token_id)
        if self._ends_with(self._opens):
            self._is_open = True
            self.num_tokens += len(self._opens)
            self._recent = []
        elif not self._may_repeat and self._recent != self._opens[: len(self._recent)]:
            self._is_settled = True

    def _ends_with(self, mark: list[int]) -> bool:
        del self._recent[: -max(len(mark), 1)]
        return bool(mark) and self._recent == mark

    def _is_space(self, token_id: int) -> bool:
        return token_id < len(self._vocabulary) and not self._vocabulary[token_id].strip()
