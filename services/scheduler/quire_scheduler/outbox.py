"""What one gateway has not read yet, merged into one frame: a gateway that reads slowly gets fewer and larger frames.

So there is never a queue of frames, and nobody waits for it. Knows nothing of streams or messages.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from quire_scheduler.errors import SchedulerError
from quire_scheduler.step import Deltas, LogprobColumns, PromptLogprobs


@dataclass(slots=True)
class _Row:
    """One sequence's news: its tokens, its end, and per token with log-probabilities what there is."""

    token_ids: list[int] = field(default_factory=list)
    finish_reason: int = 0
    # (logprob, rank, top token ids, top logprobs)
    logprobs: list[tuple[float, int, list[int], list[float]]] = field(default_factory=list)


class Merger:
    """Adds deltas up. Each `add` costs what its deltas hold, however much is there already."""

    def __init__(self) -> None:
        self._rows: dict[tuple[int, int], _Row] = {}
        self._started_handles: list[int] = []
        self._num_cached_tokens: list[int] = []
        self._rejections: list[tuple[int, SchedulerError]] = []
        self._pooled: list[tuple[int, bytes]] = []
        self._prompt_logprobs: PromptLogprobs | None = None

    def add(self, deltas: Deltas) -> None:
        """Take in newer news. A sequence's tokens follow those it has here already."""
        in_order: list[_Row] = []
        first = 0
        for i, key in enumerate(zip(deltas.handles, deltas.sequence_indices, strict=True)):
            row = self._rows.get(key)
            if row is None:
                row = self._rows[key] = _Row()
            count = deltas.num_tokens[i]
            row.token_ids += deltas.token_ids[first : first + count]
            first += count
            if deltas.finish_reasons:
                row.finish_reason = deltas.finish_reasons[i]
            in_order.append(row)
        if deltas.logprobs is not None:
            _add_logprobs(in_order, deltas.logprobs)
        self._started_handles += deltas.started_handles
        self._num_cached_tokens += deltas.num_cached_tokens
        self._rejections += deltas.rejections
        self._pooled += deltas.pooled
        if deltas.prompt_logprobs is not None:
            self._add_prompt_logprobs(deltas.prompt_logprobs)

    def result(self) -> Deltas:
        """The sum."""
        rows = list(self._rows.values())
        finish_reasons = [row.finish_reason for row in rows]
        return Deltas(
            handles=[handle for handle, _ in self._rows],
            sequence_indices=[index for _, index in self._rows],
            num_tokens=[len(row.token_ids) for row in rows],
            token_ids=[token for row in rows for token in row.token_ids],
            finish_reasons=finish_reasons if any(finish_reasons) else [],
            started_handles=self._started_handles,
            num_cached_tokens=self._num_cached_tokens,
            rejections=self._rejections,
            logprobs=_join_logprobs(rows),
            prompt_logprobs=self._prompt_logprobs,
            pooled=self._pooled,
        )

    def _add_prompt_logprobs(self, found: PromptLogprobs) -> None:
        if self._prompt_logprobs is None:
            # Never the caller's own object, which would grow behind its back.
            self._prompt_logprobs = PromptLogprobs()
        target, columns = self._prompt_logprobs, found.columns
        target.keys += found.keys
        target.positions += found.positions
        target.columns.logprobs += columns.logprobs
        target.columns.ranks += columns.ranks
        target.columns.num_top += columns.num_top
        target.columns.top_token_ids += columns.top_token_ids
        target.columns.top_logprobs += columns.top_logprobs


def _add_logprobs(in_order: list[_Row], columns: LogprobColumns) -> None:
    first = 0
    for i, row in enumerate(columns.rows):
        end = first + columns.num_top[i]
        tops = columns.top_token_ids[first:end], columns.top_logprobs[first:end]
        in_order[row].logprobs.append((columns.logprobs[i], columns.ranks[i], *tops))
        first = end


def _join_logprobs(rows: list[_Row]) -> LogprobColumns | None:
    columns = LogprobColumns()
    for i, row in enumerate(rows):
        for logprob, rank, top_token_ids, top_logprobs in row.logprobs:
            columns.rows.append(i)
            columns.logprobs.append(logprob)
            columns.ranks.append(rank)
            columns.num_top.append(len(top_token_ids))
            columns.top_token_ids += top_token_ids
            columns.top_logprobs += top_logprobs
    return columns if columns.rows else None


def _num_tokens(deltas: Deltas) -> int:
    """What the deltas weigh: tokens, and log-probabilities of prompt tokens with their alternatives."""
    scores = deltas.prompt_logprobs
    return len(deltas.token_ids) + (
        len(scores.positions) + len(scores.columns.top_token_ids) if scores else 0
    )


class Outbox:
    """The news that one gateway has not read."""

    def __init__(self, max_unread_tokens: int) -> None:
        self._max_unread_tokens = max_unread_tokens
        # The first unread deltas as they are, so that a gateway that keeps up costs no merging.
        self._first: Deltas | None = None
        self._merger: Merger | None = None
        self._num_tokens = 0
        self._step_id = 0
        self._sampled_at_unix_us = 0
        # Deltas that were merged into others, ever.
        self.num_merged = 0

    def __bool__(self) -> bool:
        """Whether there is something to send."""
        return self._first is not None

    def put(self, step_id: int, sampled_at_unix_us: int, deltas: Deltas) -> bool:
        """Add the news of a step. False: more tokens than the limit are unread, the gateway must be given up."""
        if self._first is None:
            self._first = deltas
            self._num_tokens = _num_tokens(deltas)
        else:
            if self._merger is None:
                self._merger = Merger()
                self._merger.add(self._first)
            self._merger.add(deltas)
            self._num_tokens += _num_tokens(deltas)
            self.num_merged += 1
        self._step_id = step_id
        if sampled_at_unix_us:
            self._sampled_at_unix_us = sampled_at_unix_us
        return self._num_tokens <= self._max_unread_tokens

    def take(self) -> tuple[int, int, Deltas]:
        """Step id, sampling time (Unix microseconds) and all that is unread; only when there is something."""
        assert self._first is not None, "take from an empty outbox"
        deltas = self._first if self._merger is None else self._merger.result()
        taken = self._step_id, self._sampled_at_unix_us, deltas
        self._first = self._merger = None
        self._sampled_at_unix_us = 0
        return taken
