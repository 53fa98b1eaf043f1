"""Requests whose outputs are bounded: held back while their grammar compiles, then given a mask every step.

Joins the core, the grammar service and the mask pipeline for the engine, on its loop. Knows no stream and no message.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from quire_scheduler.errors import SchedulerError
from quire_scheduler.grammar.compiler import CompilerLimits
from quire_scheduler.grammar.masks import MaskPipeline, MaskStats, StepMasks
from quire_scheduler.grammar.service import GrammarService
from quire_scheduler.grammar.vocabulary import Vocabulary
from quire_scheduler.request import Request
from quire_scheduler.scheduler import SchedulerCore
from quire_scheduler.step import StepPlan
from quire_servicekit.logging import get_logger

log = get_logger("grammar")

FetchVocabulary = Callable[[], Awaitable[Vocabulary]]


class ConstrainedRequests:
    """One engine's. Without `fetch_vocabulary` constraints are refused by name."""

    def __init__(
        self,
        limits: CompilerLimits,
        fetch_vocabulary: FetchVocabulary | None,
        on_change: Callable[[], None],
        now_s: Callable[[], float],
    ) -> None:
        """on_change: something can be planned, sent or told now."""
        self.grammars = GrammarService(limits, has_tokenizer=fetch_vocabulary is not None)
        # Masks to be sent, in the order of their steps.
        self.outbox: deque[StepMasks] = deque()
        self._fetch_vocabulary = fetch_vocabulary
        self._on_change = on_change
        self._now_s = now_s
        self._core: SchedulerCore | None = None
        self._masks: MaskPipeline | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def mask_stats(self) -> MaskStats:
        """Of all masks so far."""
        return MaskStats() if self._masks is None else self._masks.stats

    def attach(self, core: SchedulerCore, vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        """The engine's core and model are known; once."""
        self._core = core
        self._masks = MaskPipeline(vocab_size, self._deliver)
        if self._fetch_vocabulary is not None:
            self._run(self._learn(self._fetch_vocabulary, vocab_size, eos_token_ids))

    def submit(self, core: SchedulerCore, request: Request) -> None:
        """Accept a request with a constraint or a reasoning span. Raises what the core raises, or why it is refused."""
        maskers = self.grammars.try_prepare(request)
        request.awaits_grammar = True
        core.submit(request, self._now_s())
        if maskers is not None:
            core.start(request, maskers)
        elif request.num_unfinished:
            self._run(self._start_later(core, request))

    def planned(self, core: SchedulerCore, plan: StepPlan) -> None:
        """A step with masked slots is about to be sent."""
        assert self._masks is not None
        self._masks.planned(plan, plan.step_id - core.num_steps_in_flight)

    def applied(self, step_id: int) -> None:
        """A step's result was applied."""
        if self._masks is not None:
            self._masks.applied(step_id)

    def worker_lost(self) -> None:
        """Steps in flight are gone, and so is who waited for their masks."""
        self.outbox.clear()
        if self._masks is not None:
            self._masks.reset()

    async def close(self) -> None:
        """Let go of threads and processes."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.grammars.close()
        if self._masks is not None:
            self._masks.close()

    def _deliver(self, masks: StepMasks) -> None:
        assert self._core is not None
        self.outbox.append(masks)
        for sequence, error in masks.failures:
            log.info("constraint failed", request_id=sequence.request.request_id, reason=str(error))
            self._core.fail(sequence.request, error, self._now_s())
        self._on_change()

    async def _start_later(self, core: SchedulerCore, request: Request) -> None:
        try:
            maskers = await self.grammars.prepare(request)
        except SchedulerError as error:
            log.info("constraint refused", request_id=request.request_id, reason=str(error))
            core.fail(request, error, self._now_s())
        except Exception:
            # For instance a process that could not be started: the request must not wait for ever.
            log.exception("a constraint could not be compiled", request_id=request.request_id)
            core.fail(request, SchedulerError("the constraint could not be compiled"), self._now_s())
        else:
            core.start(request, maskers)
        self._on_change()

    async def _learn(self, fetch: FetchVocabulary, vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        vocabulary = await fetch()
        await self.grammars.set_vocabulary(vocabulary, vocab_size, eos_token_ids)
        log.info("vocabulary known", vocab_size=vocab_size, num_tokens=len(vocabulary.token_bytes))

    def _run(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a task for constraints failed", exc_info=error)
