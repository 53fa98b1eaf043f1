"""The contract's messages to domain data and back, for everything the gateway shares with scheduler and clients.

One job: translate. No decision is taken here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import grpc
from google.rpc import code_pb2, status_pb2

from quire.model.v1 import model_pb2
from quire.pooling.v1 import pooling_pb2
from quire.sampling.v1 import sampling_pb2
from quire.scheduler.v1 import serve_pb2
from quire_gateway.active_request import ActiveRequest
from quire_gateway.models import ModelTask, ServedModel
from quire_gateway.pooling.params import PoolingParams, PoolingTask
from quire_gateway.sampling import Sampling
from quire_gateway.sequences import FinishReason, TokenLogprob
from quire_gateway.structured_wire import constraint_message, constraint_of, reasoning_message, reasoning_of
from quire_servicekit.error_details import error_of_code, error_of_status
from quire_servicekit.errors import DeadlineExceeded, InternalError, QuireError, RequestAborted

_SCALARS = (
    "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty", "seed",
    "num_logprobs", "num_prompt_logprobs", "min_tokens", "max_tokens", "ignore_eos",
)  # fmt: skip

_CODES = {code.value[0]: code for code in grpc.StatusCode}

FINISH_REASONS: dict[int, FinishReason] = {
    sampling_pb2.FINISH_REASON_STOP: FinishReason.STOP,
    sampling_pb2.FINISH_REASON_LENGTH: FinishReason.LENGTH,
}
FINISH_REASON_CODES = {
    FinishReason.STOP: sampling_pb2.FINISH_REASON_STOP,
    FinishReason.LENGTH: sampling_pb2.FINISH_REASON_LENGTH,
}


def sampling_of(message: sampling_pb2.SamplingParams) -> Sampling:
    """SamplingParams as domain data; what has no presence is None."""
    values = {name: getattr(message, name) for name in _SCALARS if message.HasField(name)}
    return Sampling(
        **values,
        logit_bias=dict(message.logit_bias),
        stop_token_ids=tuple(message.stop_token_ids),
        allowed_token_ids=tuple(message.allowed_token_ids),
        bad_token_sequences=tuple(tuple(bad.token_ids) for bad in message.bad_token_sequences),
        logprob_token_ids=tuple(message.logprob_token_ids),
        constraint=constraint_of(message.constraint) if message.HasField("constraint") else None,
        reasoning=reasoning_of(message.reasoning) if message.HasField("reasoning") else None,
    )


def sampling_message(sampling: Sampling) -> sampling_pb2.SamplingParams:
    """Domain data as SamplingParams; None stays unset."""
    values = {name: value for name in _SCALARS if (value := getattr(sampling, name)) is not None}
    return sampling_pb2.SamplingParams(
        **values,
        logit_bias=dict(sampling.logit_bias),
        stop_token_ids=sampling.stop_token_ids,
        allowed_token_ids=sampling.allowed_token_ids,
        bad_token_sequences=[
            sampling_pb2.TokenSequence(token_ids=bad) for bad in sampling.bad_token_sequences
        ],
        logprob_token_ids=sampling.logprob_token_ids,
        constraint=None if sampling.constraint is None else constraint_message(sampling.constraint),
        reasoning=None if sampling.reasoning is None else reasoning_message(sampling.reasoning),
    )


_TASKS = {
    model_pb2.MODEL_TASK_GENERATE: ModelTask.GENERATE,
    model_pb2.MODEL_TASK_EMBED: ModelTask.EMBED,
    model_pb2.MODEL_TASK_CLASSIFY: ModelTask.CLASSIFY,
    model_pb2.MODEL_TASK_SCORE: ModelTask.SCORE,
}
_POOLING_TASKS = {
    PoolingTask.EMBED: pooling_pb2.POOLING_TASK_EMBED,
    PoolingTask.CLASSIFY: pooling_pb2.POOLING_TASK_CLASSIFY,
    PoolingTask.TOKEN_EMBED: pooling_pb2.POOLING_TASK_TOKEN_EMBED,
}


def served_model(info: model_pb2.ModelInfo, max_model_len: int, vocabulary: str = "") -> ServedModel:
    """ModelInfo as domain data. max_model_len: the engine's limit, which may be below the model's. vocabulary: the
    engine's tokenizer, see ServedModel."""
    return ServedModel(
        id=info.id,
        max_model_len=max_model_len or info.max_model_len,
        vocab_size=info.vocab_size,
        eos_token_ids=tuple(info.eos_token_ids),
        default_sampling=sampling_of(info.default_sampling),
        created_unix_s=info.created_unix_s,
        fingerprint=info.fingerprint,
        tasks=frozenset(_TASKS[task] for task in info.tasks if task in _TASKS)
        or frozenset({ModelTask.GENERATE}),
        embedding_size=info.embedding_size,
        labels=tuple(info.labels),
        vocabulary=vocabulary,
    )


def submit_message(request: ActiveRequest, handle: int, now: float) -> serve_pb2.ServeRequest:
    """The Submit of a request, with the tokens its sequences have already. now: event loop time."""
    spec = request.spec
    if spec.pooling is not None:
        return _pooled_submit_message(request, spec.pooling, handle, now)
    submit = serve_pb2.Submit(
        handle=handle,
        request_id=spec.id,
        prompt_token_ids=spec.prompt_token_ids,
        sampling=sampling_message(spec.sampling),
        eos_token_ids=spec.model.eos_token_ids,
        n=spec.n,
        priority=spec.priority,
        tenant=spec.tenant,
        cache_salt=spec.cache_salt,
        traceparent=spec.traceparent,
        skip_reading_prefix_cache=spec.skip_reading_prefix_cache,
    )
    if request.is_prompt_scored:
        # Another engine told all of them already; its successor may use its cache.
        submit.sampling.ClearField("num_prompt_logprobs")
    if any(sequence.received_token_ids or sequence.finish for sequence in request.sequences):
        submit.resumed.extend(
            serve_pb2.ResumedSequence(sequence_index=s.index, output_token_ids=s.received_token_ids)
            for s in request.unfinished
        )
    if spec.deadline is not None:
        submit.timeout.FromMilliseconds(max(1, round((spec.deadline - now) * 1000)))
    return serve_pb2.ServeRequest(submit=submit)


def _pooled_submit_message(
    request: ActiveRequest, pooling: PoolingParams, handle: int, now: float
) -> serve_pb2.ServeRequest:
    spec = request.spec
    submit = serve_pb2.Submit(
        handle=handle,
        request_id=spec.id,
        prompt_token_ids=spec.prompt_token_ids,
        n=1,
        priority=spec.priority,
        tenant=spec.tenant,
        cache_salt=spec.cache_salt,
        traceparent=spec.traceparent,
        pooling=pooling_pb2.PoolingParams(
            task=_POOLING_TASKS[pooling.task],
            num_dimensions=pooling.num_dimensions,
            normalize=pooling.normalize,
            second_text_start=pooling.second_text_start,
        ),
    )
    if spec.deadline is not None:
        submit.timeout.FromMilliseconds(max(1, round((spec.deadline - now) * 1000)))
    return serve_pb2.ServeRequest(submit=submit)


def vectors_of(frame: serve_pb2.StepFrame) -> Iterator[tuple[int, bytes]]:
    """The vectors of a frame: handle, and values as float32, little endian."""
    values, start = frame.pooled.values, 0
    for handle, count in zip(frame.pooled_handles, frame.pooled.num_values, strict=True):
        yield handle, values[start : start + 4 * count]
        start += 4 * count


class Row(NamedTuple):
    """News of one sequence in a frame."""

    handle: int
    sequence_index: int
    token_ids: list[int]
    finish_reason: int
    logprobs: list[TokenLogprob]


_NO_LOGPROBS: dict[int, list[TokenLogprob]] = {}


def rows_of(frame: serve_pb2.StepFrame) -> Iterator[Row]:
    """The rows of a frame's columns."""
    # Slicing a list is far cheaper than slicing a repeated field.
    token_ids = list(frame.token_ids)
    reasons = list(frame.finish_reasons)
    logprobs = _logprobs_by_row(frame.logprobs, frame) if frame.HasField("logprobs") else _NO_LOGPROBS
    start = 0
    for row, (handle, index, count) in enumerate(
        zip(frame.handles, frame.sequence_indices, frame.num_tokens, strict=True)
    ):
        end = start + count
        yield Row(handle, index, token_ids[start:end], reasons[row] if reasons else 0, logprobs.get(row, []))
        start = end


class PromptScore(NamedTuple):
    """Log-probability of one prompt token of a request."""

    handle: int
    #: Its place in the prompt, from 1.
    position: int
    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...]


def prompt_scores_of(message: serve_pb2.PromptLogprobs) -> Iterator[PromptScore]:
    """The entries of a frame's prompt log-probabilities, in their order."""
    columns, start = message.logprobs, 0
    top_ids, top_values = list(columns.top_token_ids), list(columns.top_logprobs)
    for handle, position, logprob, rank, num_top in zip(
        message.handles, message.positions, columns.logprobs, columns.ranks, columns.num_top, strict=True
    ):
        end = start + num_top
        top = tuple(zip(top_ids[start:end], top_values[start:end], strict=True))
        yield PromptScore(handle, position, logprob, rank, top)
        start = end


def _logprobs_by_row(
    columns: sampling_pb2.LogprobColumns, frame: serve_pb2.StepFrame
) -> dict[int, list[TokenLogprob]]:
    """Log-probabilities per row. They name rows, not tokens: the k-th entry of a row belongs to its k-th token."""
    starts, position = [], 0
    for count in frame.num_tokens:
        starts.append(position)
        position += count
    token_ids, top_ids, top_values = (
        list(frame.token_ids),
        list(columns.top_token_ids),
        list(columns.top_logprobs),
    )
    by_row: dict[int, list[TokenLogprob]] = {}
    top_start = 0
    for row, logprob, rank, num_top in zip(
        columns.rows, columns.logprobs, columns.ranks, columns.num_top, strict=True
    ):
        entries = by_row.setdefault(row, [])
        top_end = top_start + num_top
        top = tuple(zip(top_ids[top_start:top_end], top_values[top_start:top_end], strict=True))
        entries.append(TokenLogprob(token_ids[starts[row] + len(entries)], logprob, rank, top))
        top_start = top_end
    return by_row


def error_of_finish(reason: int) -> QuireError | None:
    """The error behind a finish reason that is none to a client; None for stop and length."""
    if reason in FINISH_REASONS:
        return None
    if reason == sampling_pb2.FINISH_REASON_DEADLINE:
        return DeadlineExceeded()
    if reason == sampling_pb2.FINISH_REASON_ABORT:
        return RequestAborted("the engine ended the request")
    return InternalError("the engine failed on this request")


def error_of_rejection(status: status_pb2.Status) -> QuireError:
    """The exception that a scheduler's rejection stands for."""
    error = error_of_status(status)
    if error is not None:
        return error
    code = _CODES.get(status.code, grpc.StatusCode.INTERNAL)
    return error_of_code(code, status.message or code_pb2.Code.Name(code.value[0]))
