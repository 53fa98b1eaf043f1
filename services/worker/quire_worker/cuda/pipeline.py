"""Two threads that keep the device busy: one launches submitted plans in order, the other waits for their results.

Knows nothing of what a step is made of, nor of where results go.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Generic, Protocol, TypeVar

from quire_worker.engine import EngineStopped
from quire_worker.step import StepOutcome, StepPlan

L = TypeVar("L")
Report = Callable[[StepOutcome | Exception], None]


class SplitRunner(Protocol[L]):
    """What the pipeline drives."""

    def launch(self, plan: StepPlan) -> L:
        """Start a step; on the launching thread."""
        ...

    def finish(self, launched: L) -> StepOutcome:
        """Wait for a step's end; on the collecting thread, in the order of the launches."""
        ...

    def reset(self) -> None:
        """Forget every sequence; on the launching thread."""
        ...


class Pipeline(Generic[L]):
    """Reports each submitted plan's outcome once, in the order of `submit`: an outcome, or what launching or
    finishing raised. A plan that fails does not stop those behind it; whoever submitted them resets."""

    def __init__(self, runner: SplitRunner[L], context: Callable[[], AbstractContextManager[object]]) -> None:
        """context: entered by both threads, for example a device's stream."""
        self._runner = runner
        self._context = context
        self._plans: queue.SimpleQueue[Callable[[int], None] | None] = queue.SimpleQueue()
        self._launched: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._stopped = False
        # When the oldest step not yet finished was launched; None: none is.
        self._launch_times: list[float] = []
        self._threads = [
            threading.Thread(target=self._run, args=(work,), name=name, daemon=True)
            for work, name in ((self._launch_all, "quire-launch"), (self._finish_all, "quire-collect"))
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, plan: StepPlan, report: Report) -> None:
        """Queue a step; thread-safe. `report` is called on the collecting thread. Raises EngineStopped after `stop`."""
        self._put(lambda idle_us: self._launch(plan, report, idle_us))

    def reset(self) -> Future[None]:
        """Queue, behind the plans already submitted, that every sequence is forgotten; done when all have ended."""
        future: Future[None] = Future()

        def job(idle_us: int) -> None:
            self._runner.reset()
            self._launched.put(lambda: future.set_result(None))

        self._put(job)
        return future

    @property
    def busy_for_s(self) -> float:
        """How long the oldest unfinished step has run, seconds; 0 when idle."""
        times = self._launch_times
        return time.monotonic() - times[0] if times else 0.0

    def stop(self, timeout_s: float | None = None) -> bool:
        """Finish what was launched, fail what is queued, end the threads. True if they have ended."""
        with self._lock:
            if not self._stopped:
                self._stopped = True
                self._plans.put(None)
        for thread in self._threads:
            thread.join(timeout_s)
        return not any(thread.is_alive() for thread in self._threads)

    def _put(self, job: Callable[[int], None]) -> None:
        with self._lock:
            if self._stopped:
                raise EngineStopped("the engine has been stopped")
            self._plans.put(job)

    def _run(self, work: Callable[[], None]) -> None:
        with self._context():
            work()

    def _launch_all(self) -> None:
        while True:
            waited_from = time.perf_counter_ns()
            job = self._plans.get()
            # Waiting while a step runs is not idleness: the device is ahead of nothing.
            is_idle = not self._launch_times
            if job is None:
                self._launched.put(None)
                return
            job((time.perf_counter_ns() - waited_from) // 1000 if is_idle else 0)

    def _finish_all(self) -> None:
        while (job := self._launched.get()) is not None:
            job()

    def _launch(self, plan: StepPlan, report: Report, idle_us: int) -> None:
        if self._stopped:
            self._launched.put(lambda: report(EngineStopped("the engine was stopped before this step ran")))
            return
        self._launch_times.append(time.monotonic())
        try:
            launched = self._runner.launch(plan)
        except Exception as error:  # noqa: BLE001 - reported to whoever submitted the plan
            failure = error
            self._launched.put(lambda: self._report(report, failure))
        else:
            self._launched.put(lambda: self._finish(launched, report, idle_us))

    def _finish(self, launched: L, report: Report, idle_us: int) -> None:
        try:
            outcome = self._runner.finish(launched)
        except Exception as error:  # noqa: BLE001 - reported to whoever submitted the plan
            self._report(report, error)
        else:
            self._report(report, replace(outcome, times=replace(outcome.times, idle_us=idle_us)))

    def _report(self, report: Report, result: StepOutcome | Exception) -> None:
        del self._launch_times[0]
        report(result)
