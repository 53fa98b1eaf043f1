"""Between the wire's messages and the scheduler's own data: submits, plans, results, frames, load and errors.

Translation only. A message that repeats most of the one before it (the columns of an unchanged batch) is not built
anew: the encoders keep theirs and change what differs.
"""

from __future__ import annotations

from collections.abc import Hashable

from google.rpc import status_pb2

from quire.pooling.v1 import pooling_pb2
from quire.sampling.v1 import sampling_pb2
from quire.scheduler.v1 import events_pb2, load_pb2, serve_pb2
from quire.worker.v1 import step_pb2
from quire_scheduler import errors as domain_errors
from quire_scheduler.block_event_feed import BlockEventBatch
from quire_scheduler.grammar.constraint import KINDS, Constraint, ReasoningSpan
from quire_scheduler.grammar.masks import StepMasks
from quire_scheduler.request import Request, SamplingParams
from quire_scheduler.stats import Load
from quire_scheduler.step import Deltas, LogprobColumns, NewSequence, PromptLogprobs, StepPlan, StepResult
from quire_servicekit import errors
from quire_servicekit.error_details import status_of

_SCALARS = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "seed",
    "num_logprobs",
    "num_prompt_logprobs",
    "min_tokens",
    "max_tokens",
    "ignore_eos",
)


def request_from_submit(submit: serve_pb2.Submit, owner: Hashable, now_s: float) -> Request:
    """A request of `owner`. `attachment` keeps the sampling (or pooling) message, which goes on to the worker."""
    is_pooled = submit.HasField("pooling")
    if not is_pooled and not submit.sampling.HasField("seed"):
        raise domain_errors.InvalidRequest("sampling.seed", "set by the gateway", "unset")
    timeout_s = submit.timeout.ToTimedelta().total_seconds() if submit.HasField("timeout") else None
    return Request(
        owner=owner,
        handle=submit.handle,
        prompt_token_ids=list(submit.prompt_token_ids),
        sampling=sampling_from_message(submit.sampling, tuple(submit.eos_token_ids)),
        request_id=submit.request_id,
        n=submit.n or 1,
        resumed={r.sequence_index: list(r.output_token_ids) for r in submit.resumed},
        priority=submit.priority,
        tenant=submit.tenant,
        deadline_s=None if timeout_s is None else now_s + timeout_s,
        cache_salt=submit.cache_salt,
        traceparent=submit.traceparent,
        attachment=submit.pooling if is_pooled else _for_worker(submit.sampling),
        # A vector may be made of all tokens' hidden states.
        skip_reading_prefix_cache=submit.skip_reading_prefix_cache or is_pooled,
        is_pooled=is_pooled,
    )


def sampling_from_message(
    message: sampling_pb2.SamplingParams, eos_token_ids: tuple[int, ...]
) -> SamplingParams:
    """Sampling parameters; a field that is not set has the default that the contract names."""
    # HasField decides: zero is a value like any other.
    values = {name: getattr(message, name) for name in _SCALARS if message.HasField(name)}
    return SamplingParams(
        **values,
        logit_bias=dict(message.logit_bias),
        stop_token_ids=tuple(message.stop_token_ids),
        eos_token_ids=eos_token_ids,
        allowed_token_ids=tuple(message.allowed_token_ids),
        constraint=_constraint_from_message(message.constraint) if message.HasField("constraint") else None,
        reasoning=_reasoning_from_message(message.reasoning) if message.HasField("reasoning") else None,
    )


def _constraint_from_message(message: sampling_pb2.Constraint) -> Constraint:
    kind = message.WhichOneof("kind")
    if kind is None:
        raise domain_errors.InvalidRequest("constraint", f"one of {', '.join(KINDS)}", "none")
    return Constraint(
        kind=kind,
        text="" if kind in ("choice", "json_object") else getattr(message, kind),
        choices=tuple(message.choice.texts),
        disable_any_whitespace=message.disable_any_whitespace,
        whitespace_pattern=message.whitespace_pattern if message.HasField("whitespace_pattern") else None,
    )


def _reasoning_from_message(message: sampling_pb2.ReasoningSpan) -> ReasoningSpan:
    if not message.end_token_ids:
        raise domain_errors.InvalidRequest("reasoning.end_token_ids", "at least one token", 0)
    return ReasoningSpan(
        end_token_ids=tuple(message.end_token_ids),
        start_token_ids=tuple(message.start_token_ids),
        starts_open=message.starts_open,
        max_tokens=message.max_tokens if message.HasField("max_tokens") else None,
    )


def _for_worker(sampling: sampling_pb2.SamplingParams) -> sampling_pb2.SamplingParams:
    """The parameters without a constraint's text, which may be long: the worker gets masks, and needs to know that."""
    if not sampling.HasField("constraint"):
        return sampling
    short = sampling_pb2.SamplingParams()
    short.CopyFrom(sampling)
    short.constraint.Clear()
    short.constraint.SetInParent()
    return short


def mask_to_message(masks: StepMasks) -> step_pb2.ExecuteRequest:
    """A step's masks as a message."""
    return step_pb2.ExecuteRequest(
        mask=step_pb2.SampleMask(step_id=masks.step_id, slots=masks.slots, bitmasks=masks.words)
    )


class PlanEncoder:
    """Makes the messages of one step stream. The message that `encode` returns is valid until the next call."""

    def __init__(self) -> None:
        self._message = step_pb2.ExecuteRequest()
        # The columns that `_message` holds; the planner shares these lists between steps while they don't change.
        self._slots: list[int] | None = None
        self._num_new_tokens: list[int] | None = None

    def encode(self, plan: StepPlan) -> step_pb2.ExecuteRequest:
        """The plan as a message."""
        if plan.slots is self._slots and plan.num_new_tokens is self._num_new_tokens:
            return self._update(plan)
        self._slots, self._num_new_tokens = plan.slots, plan.num_new_tokens
        step = step_pb2.StepRequest(
            step_id=plan.step_id,
            released_slots=plan.released_slots,
            copy_source_block_ids=plan.copy_source_block_ids,
            copy_target_block_ids=plan.copy_target_block_ids,
            new_sequences=[_new_sequence_to_message(sequence) for sequence in plan.new_sequences],
            slots=plan.slots,
            num_new_tokens=plan.num_new_tokens,
            num_new_blocks=plan.num_new_blocks,
            new_block_ids=plan.new_block_ids,
            masked_slots=plan.masked_slots,
        )
        self._message = step_pb2.ExecuteRequest(step=step)
        return self._message

    def _update(self, plan: StepPlan) -> step_pb2.ExecuteRequest:
        step = self._message.step
        step.step_id = plan.step_id
        for name in (
            "released_slots",
            "copy_source_block_ids",
            "copy_target_block_ids",
            "new_sequences",
            "num_new_blocks",
            "new_block_ids",
            "masked_slots",
        ):
            step.ClearField(name)
        if plan.num_new_blocks:
            step.num_new_blocks.extend(plan.num_new_blocks)
            step.new_block_ids.extend(plan.new_block_ids)
        if plan.masked_slots:
            step.masked_slots.extend(plan.masked_slots)
        # The batch can stay the same while a slot of a finished sequence is released.
        step.released_slots.extend(plan.released_slots)
        step.copy_source_block_ids.extend(plan.copy_source_block_ids)
        step.copy_target_block_ids.extend(plan.copy_target_block_ids)
        step.new_sequences.extend(_new_sequence_to_message(sequence) for sequence in plan.new_sequences)
        return self._message


def _new_sequence_to_message(sequence: NewSequence) -> step_pb2.NewSequence:
    return step_pb2.NewSequence(
        slot=sequence.slot,
        token_ids=sequence.token_ids,
        num_prompt_tokens=sequence.num_prompt_tokens,
        num_computed_tokens=sequence.num_computed_tokens,
        block_ids=sequence.block_ids,
        sampling=None if sequence.request.is_pooled else _sampling_for_worker(sequence),
        pooling=sequence.request.attachment if sequence.request.is_pooled else None,
        eos_token_ids=sequence.sampling.eos_token_ids,
        sequence_index=sequence.sequence_index,
    )


def _sampling_for_worker(sequence: NewSequence) -> sampling_pb2.SamplingParams:
    """The client's message as it came, but without prompt log-probabilities where they are there or another's task."""
    message: sampling_pb2.SamplingParams = sequence.request.attachment
    if sequence.scores_prompt or sequence.sampling.num_prompt_logprobs is None:
        return message
    without = sampling_pb2.SamplingParams()
    without.CopyFrom(message)
    without.ClearField("num_prompt_logprobs")
    return without


def result_from_message(message: step_pb2.StepResult) -> StepResult:
    """A step's result as plain lists."""
    return StepResult(
        step_id=message.step_id,
        slots=list(message.slots),
        token_ids=list(message.token_ids),
        num_tokens=list(message.num_tokens),
        logprobs=_logprobs_from_message(message.logprobs) if message.HasField("logprobs") else None,
        prompt_logprobs=_prompt_logprobs_from_message(message.prompt_logprobs)
        if message.HasField("prompt_logprobs")
        else None,
        pooled_slots=list(message.pooled_slots),
        pooled=_vectors_from_message(message.pooled) if message.pooled_slots else [],
        sampled_at_unix_us=message.sampled_at_unix_us,
        prepare_us=message.prepare_us,
        forward_us=message.forward_us,
        sample_us=message.sample_us,
        idle_us=message.idle_us,
        mask_wait_us=message.mask_wait_us,
    )


def _logprobs_from_message(message: sampling_pb2.LogprobColumns) -> LogprobColumns:
    return LogprobColumns(
        rows=list(message.rows),
        logprobs=list(message.logprobs),
        ranks=list(message.ranks),
        num_top=list(message.num_top),
        top_token_ids=list(message.top_token_ids),
        top_logprobs=list(message.top_logprobs),
    )


def _prompt_logprobs_from_message(message: step_pb2.PromptLogprobs) -> PromptLogprobs:
    return PromptLogprobs(
        list(message.slots), list(message.positions), _logprobs_from_message(message.logprobs)
    )


def _vectors_from_message(columns: pooling_pb2.PooledColumns) -> list[bytes]:
    """Each vector's bytes; a worker whose counts do not add up broke the contract."""
    values, vectors, start = columns.values, [], 0
    for count in columns.num_values:
        vectors.append(values[start : start + 4 * count])
        start += 4 * count
    if start != len(values):
        raise domain_errors.UnexpectedResult(f"{len(values)} bytes of vectors, their counts make {start}")
    return vectors


class FrameEncoder:
    """Makes the frames of one gateway's stream. The message that `encode` returns is valid until the next call."""

    def __init__(self) -> None:
        self._message = serve_pb2.ServeResponse()
        self._handles: list[int] | None = None
        self._sequence_indices: list[int] | None = None
        self._num_tokens: list[int] | None = None

    def encode(
        self, step_id: int, sampled_at_unix_us: int, deltas: Deltas, load: load_pb2.Load
    ) -> serve_pb2.ServeResponse:
        """The deltas as a frame."""
        is_same = (
            deltas.handles is self._handles
            and deltas.sequence_indices is self._sequence_indices
            and deltas.num_tokens is self._num_tokens
        )
        plain = not (
            deltas.finish_reasons
            or deltas.started_handles
            or deltas.rejections
            or deltas.logprobs
            or deltas.prompt_logprobs
            or deltas.pooled
        )
        if is_same and plain:
            frame = self._message.step_frame
            frame.step_id = step_id
            frame.sampled_at_unix_us = sampled_at_unix_us
            del frame.token_ids[:]
            frame.token_ids.extend(deltas.token_ids)
            frame.load.CopyFrom(load)
            return self._message
        frame = serve_pb2.StepFrame(
            step_id=step_id,
            handles=deltas.handles,
            sequence_indices=deltas.sequence_indices,
            num_tokens=deltas.num_tokens,
            token_ids=deltas.token_ids,
            finish_reasons=deltas.finish_reasons,  # type: ignore[arg-type]
            started_handles=deltas.started_handles,
            num_cached_tokens=deltas.num_cached_tokens,
            rejections=[rejection_to_message(handle, error) for handle, error in deltas.rejections],
            logprobs=None if deltas.logprobs is None else _logprobs_to_message(deltas.logprobs),
            prompt_logprobs=None
            if deltas.prompt_logprobs is None
            else _prompt_logprobs_to_message(deltas.prompt_logprobs),
            pooled_handles=[handle for handle, _ in deltas.pooled],
            pooled=_pooled_to_message(deltas) if deltas.pooled else None,
            sampled_at_unix_us=sampled_at_unix_us,
            load=load,
        )
        message = serve_pb2.ServeResponse(step_frame=frame)
        if plain:
            self._message = message
            self._handles, self._sequence_indices = deltas.handles, deltas.sequence_indices
            self._num_tokens = deltas.num_tokens
        return message


def _logprobs_to_message(columns: LogprobColumns) -> sampling_pb2.LogprobColumns:
    return sampling_pb2.LogprobColumns(
        rows=columns.rows,
        logprobs=columns.logprobs,
        ranks=columns.ranks,
        num_top=columns.num_top,
        top_token_ids=columns.top_token_ids,
        top_logprobs=columns.top_logprobs,
    )


def _prompt_logprobs_to_message(found: PromptLogprobs) -> serve_pb2.PromptLogprobs:
    return serve_pb2.PromptLogprobs(
        handles=found.keys, positions=found.positions, logprobs=_logprobs_to_message(found.columns)
    )


def _pooled_to_message(deltas: Deltas) -> pooling_pb2.PooledColumns:
    return pooling_pb2.PooledColumns(
        num_values=[len(vector) // 4 for _, vector in deltas.pooled],
        values=b"".join(vector for _, vector in deltas.pooled),
    )


def load_to_message(load: Load) -> load_pb2.Load:
    """The load as the contract has it."""
    return load_pb2.Load(
        num_waiting=load.num_waiting,
        num_running=load.num_running,
        num_waiting_tokens=load.num_waiting_tokens,
        num_total_blocks=load.num_total_blocks,
        num_free_blocks=load.num_free_blocks,
        num_used_blocks=load.num_used_blocks,
        num_cached_blocks=load.num_cached_blocks,
    )


def block_events_to_message(batch: BlockEventBatch) -> events_pb2.SubscribeBlockEventsResponse:
    """Changes of the prefix index as the contract has them."""
    return events_pb2.SubscribeBlockEventsResponse(
        epoch=batch.epoch,
        sequence_number=batch.number,
        is_snapshot=batch.is_snapshot,
        stored=[
            events_pb2.BlockStored(
                hash=block.block_hash, parent_hash=block.parent_hash, num_tokens=block.num_tokens
            )
            for block in batch.stored
        ],
        removed_hashes=batch.removed,
    )


def rejection_to_message(handle: int, error: domain_errors.SchedulerError) -> serve_pb2.Rejection:
    """A request's end with an error, google.rpc details included."""
    return serve_pb2.Rejection(handle=handle, status=status_from_error(error))


def status_from_error(error: Exception) -> status_pb2.Status:
    """The status of what the scheduler's domain refuses or fails with."""
    return status_of(public_error(error))


def public_error(error: Exception) -> errors.QuireError:
    """The domain's error as the one that has a row in the table of statuses."""
    if isinstance(error, errors.QuireError):
        return error
    if isinstance(error, domain_errors.QueueFull):
        return errors.QueueFull(error.retry_delay_s, message=str(error))
    if isinstance(error, domain_errors.InvalidRequest):
        return errors.InvalidRequest(error.field, error.limit, error.value, message=error.message)
    if isinstance(error, domain_errors.UnsupportedParameter):
        return errors.Unsupported(error.parameter, message=str(error))
    if isinstance(error, domain_errors.TokenizerMissing):
        return errors.Unavailable("tokenizer", message=str(error))
    if isinstance(error, domain_errors.Draining):
        return errors.Unavailable("scheduler", message=str(error))
    return errors.InternalError()
