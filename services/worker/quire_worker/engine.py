"""The engine thread: runs submitted plans one after the other and hands each outcome to a callback.

Knows nothing of what a step is made of (that is the runner's) nor of where results go (that is the servicer's).
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import Protocol

from quire_worker.step import StepOutcome, StepPlan


class Runner(Protocol):
    """What the engine drives: ModelRunner, the simulated worker, a test's double."""

    def execute(self, plan: StepPlan) -> StepOutcome:
        """Run one step to its end."""
        ...

    def reset(self) -> None:
        """Forget every sequence; blocks keep their content."""
        ...


class EngineStopped(RuntimeError):
    """A plan was submitted to, or was still queued in, an engine that has been stopped."""


class Engine:
    """One thread that owns a runner. Plans run in the order of `submit`; every future is resolved, always.

    A plan that raises resolves its future with the exception; plans queued behind it still run, so whoever
    submitted them decides (the servicer ends the stream and calls `reset`).
    """

    def __init__(self, runner: Runner, *, name: str = "quire-engine") -> None:
        self._runner = runner
        self._jobs: queue.SimpleQueue[tuple[Callable[[int], object], Future[object]] | None] = (
            queue.SimpleQueue()
        )
        self._lock = threading.Lock()
        self._stopped = False
        self._busy_since: float | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, plan: StepPlan) -> Future[StepOutcome]:
        """Queue a step; thread-safe. Raises EngineStopped after `stop`.

        The future's callbacks run on the engine thread: hand over to an event loop with call_soon_threadsafe.
        """
        future: Future[StepOutcome] = Future()

        def job(idle_us: int) -> StepOutcome:
            outcome = self._runner.execute(plan)
            return replace(outcome, times=replace(outcome.times, idle_us=idle_us))

        self._put(job, future)  # type: ignore[arg-type]
        return future

    def reset(self) -> Future[None]:
        """Queue, behind the plans already submitted, that every sequence is forgotten."""
        future: Future[None] = Future()
        self._put(lambda _: self._runner.reset(), future)  # type: ignore[arg-type]
        return future

    @property
    def busy_for_s(self) -> float:
        """How long the present step has run, seconds; 0 when idle. For liveness: a hung device shows here."""
        since = self._busy_since
        return 0.0 if since is None else time.monotonic() - since

    def stop(self, timeout_s: float | None = None) -> bool:
        """Finish the running step, fail what is queued behind it, end the thread. True if it has ended."""
        with self._lock:
            if not self._stopped:
                self._stopped = True
                self._jobs.put(None)
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _put(self, job: Callable[[int], object], future: Future[object]) -> None:
        with self._lock:
            if self._stopped:
                raise EngineStopped("the engine has been stopped")
            self._jobs.put((job, future))

    def _run(self) -> None:
        while True:
            waited_from = time.perf_counter_ns()
            item = self._jobs.get()
            idle_us = (time.perf_counter_ns() - waited_from) // 1000
            if item is None:
                return
            job, future = item
            if self._stopped:
                future.set_exception(EngineStopped("the engine was stopped before this step ran"))
                continue
            self._busy_since = time.monotonic()
            try:
                result = job(idle_us)
            except Exception as error:  # noqa: BLE001 - reported to whoever submitted, through the future
                self._busy_since = None
                future.set_exception(error)
            else:
                self._busy_since = None
                future.set_result(result)
