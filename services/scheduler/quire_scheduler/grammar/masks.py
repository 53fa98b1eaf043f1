"""The masks of steps in flight: made on a thread of their own while the worker's forward pass runs, delivered in order.

A step's masks need the tokens of the step before it, so they are begun when that one's result is applied. One step is
under way at a time: masks are sent in the order of their steps, and no two threads share a sequence's matcher.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from quire_scheduler.errors import InvalidRequest, SchedulerError
from quire_scheduler.grammar.masker import EVERYTHING, Words
from quire_scheduler.request import Masker, Sequence, SequenceStatus
from quire_scheduler.step import StepPlan
from quire_servicekit.logging import get_logger

log = get_logger("grammar")


@dataclass(slots=True)
class StepMasks:
    """Masks of one step: `words` is row after row ceil(vocab_size / 32) little-endian words, one row per slot.

    failures: sequences that cannot go on, and why; their rows permit everything.
    """

    step_id: int
    slots: list[int]
    words: bytes
    failures: list[tuple[Sequence, SchedulerError]] = field(default_factory=list)


@dataclass(slots=True)
class MaskStats:
    """Totals since the start. num_rows: one a token. mask_ns: on the mask thread, taking tokens in included."""

    num_steps: int = 0
    num_rows: int = 0
    mask_ns: int = 0


class _Job(NamedTuple):
    """A row to make; masker None: the sequence has ended, and the step's token for it is wasted."""

    sequence: Sequence
    masker: Masker | None
    num_tokens: int


class MaskPipeline:
    """Makes the masks of planned steps. All methods are the event loop's."""

    def __init__(
        self,
        vocab_size: int,
        deliver: Callable[[StepMasks], None],
        *,
        max_row_s: float = 0.25,
        pool: Executor | None = None,
    ) -> None:
        """deliver: called on the loop, in the order of steps. max_row_s: a sequence whose mask takes more of a
        processor's time fails, since all others of its step wait for it."""
        self.stats = MaskStats()
        self._num_words = -(-vocab_size // 32)
        self._deliver = deliver
        self._max_row_s = max_row_s
        self._pool = pool or ThreadPoolExecutor(1, "quire-masks")
        self._planned: deque[StepPlan] = deque()
        self._is_busy = False
        self._last_applied = 0
        # Rises with every reset: what belongs to an earlier stream is dropped.
        self._generation = 0

    def planned(self, plan: StepPlan, num_acknowledged_steps: int) -> None:
        """A step with masked slots is on its way. num_acknowledged_steps: id of the last step that was applied."""
        self._last_applied = num_acknowledged_steps
        self._planned.append(plan)
        self._start()

    def applied(self, step_id: int) -> None:
        """A step's result was applied: its tokens are known."""
        self._last_applied = step_id
        if self._planned:
            self._start()

    def reset(self) -> None:
        """The stream has ended: no mask is wanted any more."""
        self._generation += 1
        self._planned.clear()

    def close(self) -> None:
        """Start nothing more."""
        self.reset()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _start(self) -> None:
        if self._is_busy or not self._planned or self._planned[0].step_id > self._last_applied + 1:
            return
        plan = self._planned.popleft()
        jobs = [
            _Job(
                sequence,
                None if sequence.status is SequenceStatus.FINISHED else sequence.masker,
                len(sequence.output_token_ids),
            )
            for sequence in plan.masked
        ]
        generation = self._generation
        self._is_busy = True
        loop = asyncio.get_running_loop()
        made = loop.run_in_executor(self._pool, self._make, plan.step_id, plan.masked_slots, jobs)
        made.add_done_callback(lambda future: self._made(future, generation))

    def _made(self, future: asyncio.Future[StepMasks], generation: int) -> None:
        self._is_busy = False
        if not future.cancelled() and generation == self._generation:
            self._deliver(future.result())
        self._start()

    def _make(self, step_id: int, slots: list[int], jobs: list[_Job]) -> StepMasks:
        """On the mask thread."""
        started = time.perf_counter_ns()
        rows = np.zeros((len(jobs), self._num_words), dtype=np.uint32)
        failures: list[tuple[Sequence, SchedulerError]] = []
        for job, row in zip(jobs, rows, strict=True):
            error = self._fill(job, row)
            if error is not None:
                failures.append((job.sequence, error))
            if error is not None or job.masker is None:
                row.fill(EVERYTHING)
        self.stats.num_steps += 1
        self.stats.num_rows += len(jobs)
        self.stats.mask_ns += time.perf_counter_ns() - started
        return StepMasks(step_id, slots, rows.tobytes(), failures)

    def _fill(self, job: _Job, row: Words) -> SchedulerError | None:
        if job.masker is None:
            return None
        # Of the processor: on a machine that has none to spare, waiting for one is nobody's fault.
        started_s = time.thread_time()
        try:
            job.masker.consume(job.sequence.output_token_ids, job.num_tokens)
            job.masker.fill(row)
        except InvalidRequest as error:
            return error
        except BaseException:
            # A panic of the compiler is no Exception. Whatever it is, the step waits for this row: only its own request
            # may fail.
            log.exception("a mask could not be made", request_id=job.sequence.request.request_id)
            return SchedulerError("the output could not be matched")
        took_s = time.thread_time() - started_s
        constraint = job.sequence.request.sampling.constraint
        if took_s > self._max_row_s and constraint is not None:
            limit = f"matched within {self._max_row_s:g} s a token"
            return InvalidRequest(constraint.field, limit, f"{took_s:.2f} s")
        return None
