"""Text by the tokenizer: the new tokens of every stream of a step travel in one message of one DetokenizeStream.

One job: batch tokens out, hand texts back in order, and survive the tokenizer. At most two batches are under way; what
comes meanwhile is merged per stream, so that a slow tokenizer costs larger batches, never a longer queue. When a call
breaks, the streams are opened again elsewhere with their last tokens as context, and what was not answered is sent
again.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import deque
from typing import Any, Protocol

import grpc

from quire.tokenizer.v1 import detokenize_pb2, tokenizer_service_pb2_grpc
from quire_gateway.active_request import ActiveRequest
from quire_gateway.bidi import BrokenStreamError, end, read, start_writer
from quire_gateway.sequences import FinishReason, SequenceState, TokenLogprob
from quire_servicekit.errors import InternalError, Unavailable
from quire_servicekit.logging import get_logger

log = get_logger("detokenizer")

MAX_BATCHES_IN_FLIGHT = 2
#: Delivered tokens that rebuild a stream's state on another replica; the contract asks for 16.
NUM_CONTEXT_TOKENS = 16
_BACKOFF_S = (0.02, 0.05, 0.1, 0.25)


class ReplicaSource(Protocol):
    """Where tokenizer replicas come from."""

    async def pick(self) -> tuple[str, grpc.aio.Channel]:
        """A usable replica: (address, channel). Waits until there is one."""

    def mark_failed(self, address: str) -> None:
        """The replica has just failed: prefer others."""


class _Row:
    """Tokens of one stream on their way to text."""

    __slots__ = ("logprobs", "reason", "sampled_at_unix_us", "stream", "token_ids")

    def __init__(self, stream: DetokenizedStream) -> None:
        self.stream = stream
        self.token_ids: list[int] = []
        self.logprobs: list[TokenLogprob] = []
        self.sampled_at_unix_us = 0
        self.reason: FinishReason | None = None

    def absorb(self, later: _Row) -> None:
        """Append what came after."""
        self.token_ids += later.token_ids
        self.logprobs += later.logprobs
        self.sampled_at_unix_us, self.reason = later.sampled_at_unix_us, later.reason


class DetokenizedStream:
    """One sequence's place in the multiplexed stream."""

    __slots__ = ("handle", "request", "sequence")

    def __init__(self, handle: int, request: ActiveRequest, sequence: SequenceState) -> None:
        self.handle, self.request, self.sequence = handle, request, sequence


class RemoteDetokenizer:
    """Feeds sequences' tokens to a tokenizer replica and delivers their texts to the sequences."""

    def __init__(self, replicas: ReplicaSource, *, resume_timeout_s: float = 30.0) -> None:
        self._replicas, self._resume_timeout_s = replicas, resume_timeout_s
        self._streams: dict[int, DetokenizedStream] = {}
        self._by_sequence: dict[SequenceState, DetokenizedStream] = {}
        self._handles = itertools.count(1)
        self._batch_ids = itertools.count(1)
        self._opening: dict[int, DetokenizedStream] = {}
        self._closing: list[int] = []
        self._pending: dict[int, _Row] = {}
        self._in_flight: deque[tuple[int, list[_Row]]] = deque()
        self._has_work = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        #: Whether a call to a replica is open.
        self.is_connected = False

    @property
    def num_streams(self) -> int:
        """Streams that are open."""
        return len(self._streams)

    def start(self) -> None:
        """Connect in the background and stay connected."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name="detokenizer")

    async def close(self) -> None:
        """End the call."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def open(self, request: ActiveRequest, sequence: SequenceState) -> None:
        """Begin a stream for the sequence; takes effect with its first tokens."""
        handle = next(self._handles) & 0xFFFFFFFF
        stream = DetokenizedStream(handle, request, sequence)
        self._streams[handle] = self._by_sequence[sequence] = self._opening[handle] = stream

    def feed(
        self,
        sequence: SequenceState,
        token_ids: list[int],
        logprobs: list[TokenLogprob],
        sampled_at_unix_us: int,
        reason: FinishReason | None,
    ) -> None:
        """New tokens of an open stream; `reason` set: its last ones. Call `flush` after a frame's last sequence."""
        stream = self._by_sequence.get(sequence)
        if stream is None:
            return
        row = self._pending.get(stream.handle)
        if row is None:
            row = self._pending[stream.handle] = _Row(stream)
        row.token_ids += token_ids
        row.logprobs += logprobs
        row.sampled_at_unix_us, row.reason = sampled_at_unix_us, reason

    def flush(self) -> None:
        """Send what was fed since, now or as soon as a batch comes back."""
        if (self._pending or self._closing) and len(self._in_flight) < MAX_BATCHES_IN_FLIGHT:
            self._has_work.set()

    def drop(self, sequence: SequenceState) -> None:
        """No more text is wanted. Without effect on a stream that has ended."""
        stream = self._by_sequence.pop(sequence, None)
        if stream is None:
            return
        del self._streams[stream.handle]
        self._pending.pop(stream.handle, None)
        if self._opening.pop(stream.handle, None) is None:
            self._closing.append(stream.handle)
            self.flush()

    async def _run(self) -> None:
        num_failures, down_since = 0, 0.0
        while True:
            try:
                async with asyncio.timeout(self._resume_timeout_s):
                    address, channel = await self._replicas.pick()
            except TimeoutError:
                self._fail_all()
                continue
            try:
                await self._serve(channel)
            except (grpc.aio.AioRpcError, BrokenStreamError) as failure:
                if self.is_connected or num_failures == 0:
                    num_failures, down_since = 0, time.monotonic()
                    reason = failure.details() if isinstance(failure, grpc.aio.AioRpcError) else str(failure)
                    log.warning("detokenize stream lost", address=address, reason=reason)
                num_failures += 1
                self._replicas.mark_failed(address)
            except Exception:
                # A bug, here or there: the call is of no use, but its streams and the next call are.
                log.exception("detokenize stream failed", address=address)
                num_failures += 1
            finally:
                self.is_connected = False
                self._requeue()
            if time.monotonic() - down_since > self._resume_timeout_s:
                self._fail_all()
            await asyncio.sleep(_BACKOFF_S[min(num_failures, len(_BACKOFF_S)) - 1])

    async def _serve(self, channel: grpc.aio.Channel) -> None:
        """One call, until it breaks: raises AioRpcError or BrokenStreamError."""
        call: Any = tokenizer_service_pb2_grpc.TokenizerStub(channel).DetokenizeStream()
        writer = start_writer(call, self._write(call), "detokenizer writer")
        self.flush()
        try:
            while True:
                response = await read(call)
                self.is_connected = True
                self._apply(response)
        finally:
            await end(call, writer)

    async def _write(self, call: Any) -> None:
        while True:
            await self._has_work.wait()
            self._has_work.clear()
            if self._pending or self._closing:
                await call.write(self._next_batch())

    def _next_batch(self) -> detokenize_pb2.DetokenizeStreamRequest:
        batch_id = next(self._batch_ids)
        rows = list(self._pending.values())
        self._pending = {}
        self._in_flight.append((batch_id, rows))
        opened = []
        if self._opening:
            opened = [
                _open_message(row.stream)
                for row in rows
                if self._opening.pop(row.stream.handle, None) is not None
            ]
        closing, self._closing = self._closing, []
        return detokenize_pb2.DetokenizeStreamRequest(
            batch_id=batch_id,
            open=opened,
            handles=[row.stream.handle for row in rows],
            num_tokens=[len(row.token_ids) for row in rows],
            token_ids=[token_id for row in rows for token_id in row.token_ids],
            is_last=[int(row.reason is not None) for row in rows],
            close=closing,
        )

    def _apply(self, response: detokenize_pb2.DetokenizeStreamResponse) -> None:
        batch_id, rows = self._in_flight[0] if self._in_flight else (0, [])
        if batch_id != response.batch_id or len(rows) != len(response.texts):
            raise BrokenStreamError(f"batch {response.batch_id} was answered where {batch_id} was due")
        self._in_flight.popleft()
        failed = dict(zip(response.failed_handles, response.failures, strict=True))
        self.flush()
        for row, text in zip(rows, response.texts, strict=True):
            stream = row.stream
            if stream.handle not in self._streams:
                continue
            if stream.handle in failed:
                log.error(
                    "detokenisation failed", request=stream.request.spec.id, reason=failed[stream.handle]
                )
                stream.request.fail(InternalError("the text of this request could not be decoded"))
                continue
            if row.reason is not None:
                del self._streams[stream.handle], self._by_sequence[stream.sequence]
            stream.sequence.deliver(text, row.token_ids, row.logprobs, row.sampled_at_unix_us, row.reason)

    def _requeue(self) -> None:
        """The call is gone: every stream has to be opened again, and unanswered rows go before the pending ones."""
        merged: dict[int, _Row] = {}
        unanswered = [row for _, rows in self._in_flight for row in rows]
        for row in [*unanswered, *self._pending.values()]:
            if row.stream.handle not in self._streams:
                continue
            if row.stream.handle in merged:
                merged[row.stream.handle].absorb(row)
            else:
                merged[row.stream.handle] = row
        self._in_flight.clear()
        self._closing.clear()
        self._pending = merged
        self._opening = dict(self._streams)

    def _fail_all(self) -> None:
        for stream in list(self._streams.values()):
            stream.request.fail(Unavailable("tokenizer"))


def _open_message(stream: DetokenizedStream) -> detokenize_pb2.OpenStream:
    sequence = stream.sequence
    start = max(0, sequence.num_delivered - NUM_CONTEXT_TOKENS)
    return detokenize_pb2.OpenStream(
        handle=stream.handle,
        skip_special_tokens=stream.request.spec.skip_special_tokens,
        context_token_ids=sequence.received_token_ids[start : sequence.num_delivered],
    )
