"""Turns a step's sampled tokens into deltas per owner and finds which sequences they end; frees and plans nothing."""

from __future__ import annotations

from collections.abc import Hashable
from itertools import accumulate

from quire_scheduler.errors import UnexpectedResult
from quire_scheduler.request import FinishReason, Sequence, SequenceStatus
from quire_scheduler.step import Deltas, LogprobColumns, PromptLogprobs, StepPlan, StepResult

Ended = list[tuple[Sequence, FinishReason]]


def check_result(plan: StepPlan, result: StepResult) -> None:
    """Raises UnexpectedResult unless the result has exactly one token for each row of the plan that samples."""
    rows = plan.sampling_rows
    if result.step_id != plan.step_id:
        raise UnexpectedResult(f"result of step {result.step_id}, expected step {plan.step_id}")
    if result.slots != rows.slots:
        raise UnexpectedResult(f"step {plan.step_id}: slots {result.slots}, expected {rows.slots}")
    if (result.num_tokens and result.num_tokens != rows.ones) or len(result.token_ids) != len(rows.slots):
        raise UnexpectedResult(
            f"step {plan.step_id}: {len(result.token_ids)} tokens in counts {result.num_tokens}, "
            f"expected one for each of {len(rows.slots)} slots"
        )
    if result.pooled_slots != plan.pooled_slots:
        raise UnexpectedResult(
            f"step {plan.step_id}: vectors of slots {result.pooled_slots}, expected {plan.pooled_slots}"
        )
    if result.prompt_logprobs is not None:
        strangers = set(result.prompt_logprobs.keys).difference(plan.scored_prompts)
        if strangers:
            raise UnexpectedResult(f"step {plan.step_id}: prompt log-probabilities of slots {strangers}")


def end_of(sequence: Sequence) -> FinishReason | None:
    """Whether the sequence's newest output token ends it.

    An ending token before `min_tokens` is none: the worker masks them there, so only a resumed request can hold one.
    With a constraint it is one: there it comes early only where nothing else was left.
    """
    outputs = sequence.output_token_ids
    if (
        outputs
        and outputs[-1] in sequence.ending_token_ids
        and (
            len(outputs) > sequence.request.sampling.min_tokens
            or sequence.request.sampling.constraint is not None
        )
    ):
        return FinishReason.STOP
    if len(outputs) >= sequence.max_outputs:
        return FinishReason.LENGTH
    return None


def emit_undisturbed(
    plan: StepPlan, token_ids: list[int], logprobs: LogprobColumns | None
) -> tuple[Deltas, Ended]:
    """The common case: one owner has all rows and none has ended since it was planned; columns are passed through."""
    rows = plan.sampling_rows
    ended: Ended = []
    finish_reasons: list[int] = []
    for row, (sequence, token_id) in enumerate(zip(rows.sequences, token_ids, strict=True)):
        outputs = sequence.output_token_ids
        outputs.append(token_id)
        if token_id in sequence.ending_token_ids or len(outputs) >= sequence.max_outputs:
            reason = end_of(sequence)
            if reason is not None:
                ended.append((sequence, reason))
                finish_reasons = finish_reasons or [0] * len(token_ids)
                finish_reasons[row] = reason
    deltas = Deltas(
        handles=rows.handles,
        sequence_indices=rows.sequence_indices,
        num_tokens=rows.ones,
        token_ids=token_ids,
        finish_reasons=finish_reasons,
        logprobs=logprobs,
    )
    return deltas, ended


def emit_by_owner(
    plan: StepPlan, token_ids: list[int], logprobs: LogprobColumns | None, news: dict[Hashable, Deltas]
) -> tuple[Ended, int]:
    """The general case: adds to each owner's deltas in `news`; leaves out rows whose sequence has ended meanwhile.

    Answers what ended now, and how many tokens were wasted on what had ended before.
    """
    ended: Ended = []
    num_wasted = 0
    # Row of the step -> (its owner's deltas, row there), to move log-probabilities along.
    places: dict[int, tuple[Deltas, int]] = {}
    for row, (sequence, token_id) in enumerate(zip(plan.sampling_rows.sequences, token_ids, strict=True)):
        if sequence.status is SequenceStatus.FINISHED:
            num_wasted += 1
            continue
        sequence.output_token_ids.append(token_id)
        deltas = news.get(sequence.request.owner)
        if deltas is None:
            deltas = news[sequence.request.owner] = Deltas()
        if logprobs is not None:
            places[row] = (deltas, len(deltas.handles))
        reason = end_of(sequence)
        if reason is not None:
            ended.append((sequence, reason))
        add_row(deltas, sequence, token_id, reason)
    if logprobs is not None:
        _split_logprobs(logprobs, places)
    return ended, num_wasted


def emit_pooled(plan: StepPlan, vectors: list[bytes], news: dict[Hashable, Deltas]) -> tuple[Ended, int]:
    """Adds the step's vectors to their owners' deltas in `news`, each with its sequence's end.

    Answers what ended now, and how many vectors were wasted on what had ended before.
    """
    ended: Ended = []
    for sequence, vector in zip(plan.pooled, vectors, strict=True):
        if sequence.status is SequenceStatus.FINISHED:
            continue
        deltas = news.setdefault(sequence.request.owner, Deltas())
        deltas.pooled.append((sequence.request.handle, vector))
        add_row(deltas, sequence, None, FinishReason.STOP)
        ended.append((sequence, FinishReason.STOP))
    return ended, len(plan.pooled) - len(ended)


def add_row(deltas: Deltas, sequence: Sequence, token_id: int | None, reason: FinishReason | None) -> None:
    """Appends one row with a token, an end, or both."""
    if reason is not None and not deltas.finish_reasons:
        deltas.finish_reasons = [0] * len(deltas.handles)
    deltas.handles.append(sequence.request.handle)
    deltas.sequence_indices.append(sequence.index)
    if token_id is None:
        deltas.num_tokens.append(0)
    else:
        deltas.num_tokens.append(1)
        deltas.token_ids.append(token_id)
    if reason is not None or deltas.finish_reasons:
        deltas.finish_reasons.append(reason or 0)


def emit_prompt_logprobs(plan: StepPlan, found: PromptLogprobs, news: dict[Hashable, Deltas]) -> None:
    """Adds prompt log-probabilities to their owners' deltas in `news`: of each request every position once, in order.

    A prompt that is computed again, after a preemption or on another worker, brings again what was passed on: that is
    left out, and so is what belongs to a request that has ended.
    """
    columns, start = found.columns, 0
    for i, (slot, position) in enumerate(zip(found.keys, found.positions, strict=True)):
        end = start + columns.num_top[i]
        request = plan.scored_prompts[slot]
        if request.num_unfinished and position == request.num_prompt_logprobs_sent + 1:
            request.num_prompt_logprobs_sent = position
            deltas = news.setdefault(request.owner, Deltas())
            if deltas.prompt_logprobs is None:
                deltas.prompt_logprobs = PromptLogprobs()
            target = deltas.prompt_logprobs
            target.keys.append(request.handle)
            target.positions.append(position)
            target.columns.extend(columns, i, start, end)
        start = end


def _split_logprobs(logprobs: LogprobColumns, places: dict[int, tuple[Deltas, int]]) -> None:
    starts = accumulate(logprobs.num_top, initial=0)
    for i, (row, start) in enumerate(zip(logprobs.rows, starts, strict=False)):
        place = places.get(row)
        if place is None:
            continue
        deltas, new_row = place
        if deltas.logprobs is None:
            deltas.logprobs = LogprobColumns()
        target = deltas.logprobs
        target.rows.append(new_row)
        target.extend(logprobs, i, start, start + logprobs.num_top[i])
