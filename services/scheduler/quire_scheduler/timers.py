"""The driver's two clocks: a timer that can be set again, and the watch over forward progress. No polling when idle."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from quire_servicekit.logging import get_logger

log = get_logger("engine")


class Timer:
    """Calls back once, at the time that was set last. Times are seconds of time.monotonic."""

    def __init__(self, callback: Callable[[], None]) -> None:
        self._callback = callback
        self._handle: asyncio.TimerHandle | None = None
        self._at_s: float | None = None

    def set(self, at_s: float | None) -> None:
        """Fire at `at_s`, or, with None, never; replaces what was set before."""
        if at_s == self._at_s:
            return
        self.cancel()
        if at_s is not None:
            self._at_s = at_s
            # The loop rounds to milliseconds: a little late is right, a little early would find nothing to do.
            delay_s = max(0.0, at_s - time.monotonic()) + 0.001
            self._handle = asyncio.get_running_loop().call_later(delay_s, self._fire)

    def cancel(self) -> None:
        """Don't fire."""
        self._at_s = None
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _fire(self) -> None:
        self._handle = self._at_s = None
        self._callback()


class ForwardProgress:
    """Notices that steps are expected but none has ended for `timeout_s`, and when one ends again."""

    def __init__(
        self, timeout_s: float, is_expecting: Callable[[], bool], on_change: Callable[[], None]
    ) -> None:
        """`is_expecting`: whether steps ought to end now. `on_change` is called when `is_stalled` changes."""
        self.is_stalled = False
        self._timeout_s = timeout_s
        self._is_expecting = is_expecting
        self._on_change = on_change
        self._progress_s = 0.0
        self._timer = Timer(self._check)
        self._is_watching = False

    def note(self) -> None:
        """A step has ended, or there is a reason to count from now."""
        self._progress_s = time.monotonic()
        if self.is_stalled:
            self.is_stalled = False
            log.info("steps end again")
            self._on_change()

    def watch(self) -> None:
        """Steps are expected from now on; costs nothing if that is known."""
        if not self._is_watching:
            self._is_watching = True
            self._progress_s = time.monotonic()
            self._timer.set(self._progress_s + self._timeout_s)

    def close(self) -> None:
        """Stop."""
        self._timer.cancel()

    def _check(self) -> None:
        now_s = time.monotonic()
        if not self._is_expecting():
            self._is_watching = False
            self._progress_s = now_s
            if self.is_stalled:
                self.note()
            return
        due_s = self._progress_s + self._timeout_s
        if now_s < due_s:
            self._timer.set(due_s)
            return
        if not self.is_stalled:
            self.is_stalled = True
            log.error("no step has ended although sequences run", for_s=round(now_s - self._progress_s, 1))
            self._on_change()
        self._timer.set(now_s + self._timeout_s)
