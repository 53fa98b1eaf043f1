"""Between the wire's messages and the worker's own data: step plans, outcomes, the model and the pool.

Translation only; whether a plan makes sense is for whoever executes it.
"""

from __future__ import annotations

import numpy as np

from quire.model.v1 import model_pb2
from quire.pooling.v1 import pooling_pb2
from quire.sampling.v1 import sampling_pb2
from quire.worker.v1 import lifecycle_pb2, step_pb2
from quire_worker.executor import (
    LoadProgress,
    ModelDescription,
    ModelSource,
    PoolDescription,
    PoolRequest,
)
from quire_worker.masks import num_words
from quire_worker.pooling.params import PooledVectors, PoolingParams, PoolingTask
from quire_worker.step import (
    LogprobColumns,
    NewSequence,
    PromptLogprobs,
    SamplingParams,
    StepMask,
    StepOutcome,
    StepPlan,
)

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
    "ignore_eos",
)


def plan_from_message(message: step_pb2.StepRequest) -> StepPlan:
    """A step as plain lists; the message can be dropped afterwards."""
    return StepPlan(
        step_id=message.step_id,
        slots=list(message.slots),
        num_new_tokens=list(message.num_new_tokens),
        num_new_blocks=list(message.num_new_blocks),
        new_block_ids=list(message.new_block_ids),
        released_slots=list(message.released_slots),
        copy_source_block_ids=list(message.copy_source_block_ids),
        copy_target_block_ids=list(message.copy_target_block_ids),
        new_sequences=[_new_sequence(sequence) for sequence in message.new_sequences],
        masked_slots=list(message.masked_slots),
    )


def mask_from_message(message: step_pb2.SampleMask, vocab_size: int) -> StepMask:
    """A mask's rows. ValueError unless there is one row of the vocabulary's size for each slot."""
    size = num_words(vocab_size)
    words = np.frombuffer(message.bitmasks, dtype="<u4") if len(message.bitmasks) % 4 == 0 else None
    if words is None or len(words) != len(message.slots) * size:
        raise ValueError(
            f"{len(message.bitmasks)} bytes for {len(message.slots)} slots of {4 * size} bytes each"
        )
    return StepMask(message.step_id, list(message.slots), words.reshape(len(message.slots), size))


def outcome_to_message(outcome: StepOutcome) -> step_pb2.ExecuteResponse:
    """A step's outcome, ready to be sent. `num_tokens` stays empty: one token a row."""
    times = outcome.times
    result = step_pb2.StepResult(
        step_id=outcome.step_id,
        slots=outcome.slots,
        token_ids=outcome.token_ids,
        sampled_at_unix_us=outcome.sampled_at_unix_us,
        prepare_us=times.prepare_us,
        forward_us=times.forward_us,
        sample_us=times.sample_us,
        idle_us=min(times.idle_us, 0xFFFFFFFF),
        mask_wait_us=min(times.mask_wait_us, 0xFFFFFFFF),
    )
    if outcome.logprobs is not None:
        result.logprobs.CopyFrom(_logprobs_to_message(outcome.logprobs))
    if outcome.prompt_logprobs is not None:
        result.prompt_logprobs.CopyFrom(_prompt_logprobs_to_message(outcome.prompt_logprobs))
    if outcome.pooled is not None:
        result.pooled_slots.extend(outcome.pooled.slots)
        result.pooled.CopyFrom(_pooled_to_message(outcome.pooled))
    return step_pb2.ExecuteResponse(result=result)


def source_from_message(message: lifecycle_pb2.LoadModelRequest) -> ModelSource | None:
    """What LoadModel asks for; None: join the load under way."""
    if not message.path:
        return None
    return ModelSource(message.path, message.served_model_name, message.dtype or "auto")


def progress_to_message(
    progress: LoadProgress, model: ModelDescription | None = None
) -> lifecycle_pb2.LoadModelResponse:
    """One report of a load; with the model it is the last."""
    phase = lifecycle_pb2.LoadPhase.Name(int(progress.phase))
    message = lifecycle_pb2.LoadModelResponse(phase=phase, done=progress.done, total=progress.total)
    if model is not None:
        message.model.CopyFrom(model_to_message(model))
    return message


def pool_request_from_message(message: lifecycle_pb2.AllocateBlocksRequest) -> PoolRequest:
    """The sizes asked for, 0 where the default is meant."""
    return PoolRequest(
        block_size=message.block_size,
        max_num_seqs=message.max_num_seqs,
        max_tokens_per_step=message.max_tokens_per_step,
        max_model_len=message.max_model_len,
        num_blocks=message.num_blocks,
    )


def pool_to_message(pool: PoolDescription) -> lifecycle_pb2.PoolInfo:
    """The pool as the contract has it."""
    return lifecycle_pb2.PoolInfo(
        num_blocks=pool.num_blocks,
        block_size=pool.block_size,
        block_bytes=pool.block_bytes,
        max_num_seqs=pool.max_num_seqs,
        max_tokens_per_step=pool.max_tokens_per_step,
        max_model_len=pool.max_model_len,
    )


def model_to_message(model: ModelDescription) -> model_pb2.ModelInfo:
    """The model as the contract has it."""
    return model_pb2.ModelInfo(
        id=model.id,
        architecture=model.architecture,
        max_model_len=model.max_model_len,
        vocab_size=model.vocab_size,
        eos_token_ids=model.eos_token_ids,
        default_sampling=sampling_pb2.SamplingParams(**model.default_sampling),  # type: ignore[arg-type]
        dtype=model.dtype,
        num_parameters=model.num_parameters,
        created_unix_s=model.created_unix_s,
        fingerprint=model.fingerprint,
        tasks=[int(task) for task in model.tasks],  # type: ignore[misc]
        embedding_size=model.embedding_size,
        labels=model.labels,
    )


def _new_sequence(message: step_pb2.NewSequence) -> NewSequence:
    return NewSequence(
        slot=message.slot,
        token_ids=list(message.token_ids),
        num_prompt_tokens=message.num_prompt_tokens,
        num_computed_tokens=message.num_computed_tokens,
        block_ids=list(message.block_ids),
        sampling=sampling_from_message(message.sampling),
        eos_token_ids=tuple(message.eos_token_ids),
        sequence_index=message.sequence_index,
        pooling=pooling_from_message(message.pooling) if message.HasField("pooling") else None,
    )


def sampling_from_message(message: sampling_pb2.SamplingParams) -> SamplingParams:
    """Sampling parameters; a field that is not set has the default that the contract names."""
    # HasField decides: zero is a value like any other.
    values = {name: getattr(message, name) for name in _SCALARS if message.HasField(name)}
    return SamplingParams(
        **values,
        logit_bias=dict(message.logit_bias),
        stop_token_ids=tuple(message.stop_token_ids),
        allowed_token_ids=tuple(message.allowed_token_ids),
        is_masked=message.HasField("constraint") or message.HasField("reasoning"),
        bad_token_sequences=tuple(tuple(bad.token_ids) for bad in message.bad_token_sequences),
        logprob_token_ids=tuple(message.logprob_token_ids),
    )


def pooling_from_message(message: pooling_pb2.PoolingParams) -> PoolingParams:
    """How a vector is made. ValueError: a task that is not known here."""
    return PoolingParams(
        task=PoolingTask(message.task),
        num_dimensions=message.num_dimensions if message.HasField("num_dimensions") else None,
        normalize=message.normalize if message.HasField("normalize") else None,
        second_text_start=message.second_text_start if message.HasField("second_text_start") else None,
    )


def _pooled_to_message(pooled: PooledVectors) -> pooling_pb2.PooledColumns:
    return pooling_pb2.PooledColumns(
        num_values=[len(vector) for vector in pooled.vectors],
        values=b"".join(vector.astype("<f4", copy=False).tobytes() for vector in pooled.vectors),
    )


def _logprobs_to_message(columns: LogprobColumns) -> sampling_pb2.LogprobColumns:
    return sampling_pb2.LogprobColumns(
        rows=columns.rows,
        logprobs=columns.logprobs,
        ranks=columns.ranks,
        num_top=columns.num_top,
        top_token_ids=columns.top_token_ids,
        top_logprobs=columns.top_logprobs,
    )


def _prompt_logprobs_to_message(found: PromptLogprobs) -> step_pb2.PromptLogprobs:
    return step_pb2.PromptLogprobs(
        slots=found.slots, positions=found.positions, logprobs=_logprobs_to_message(found.logprobs)
    )
