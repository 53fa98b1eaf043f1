"""Decides when client streams may write, so that a busy process writes fewer and larger messages.

One job: after a burst of writing that cost t seconds of processor time, let the next burst wait about t seconds. A
message costs the same whether it holds one token or ten; when steps come faster than streams can be written, what
arrives during the wait joins the same message. At a pace the process can follow the wait is over before the next tokens
come, and nothing is delayed. Processor time, not the clock: a burst that was interrupted has cost its clients enough.
It must not know what is written.
"""

from __future__ import annotations

import asyncio
import time
from typing import Protocol


class Wakeable(Protocol):
    """Something with news for its reader."""

    def wake(self) -> None:
        """Let the reader run."""


class Pacer:
    """Collects what has news and wakes all of it at once."""

    def __init__(self, *, duty: float = 1.0, max_wait_s: float = 0.02) -> None:
        """duty: seconds of waiting per second of processor time. max_wait_s: the wait is never longer."""
        self._duty, self._max_wait_s = duty, max_wait_s
        self._waiting: list[Wakeable] = []
        self._is_scheduled = False
        self._not_before = 0.0
        self._loop = asyncio.get_running_loop()

    def add(self, item: Wakeable) -> None:
        """`item` has news: wake it in the next burst. Callers add an item once until it has been woken."""
        self._waiting.append(item)
        if not self._is_scheduled:
            self._schedule()

    def _schedule(self) -> None:
        self._is_scheduled = True
        wait_s = self._not_before - self._loop.time()
        if wait_s > 0:
            self._loop.call_later(wait_s, self._burst)
        else:
            # Behind the rest of this turn of the loop: a frame's streams are all added before any is woken.
            self._loop.call_soon(self._burst)

    def _burst(self) -> None:
        items, self._waiting = self._waiting, []
        started = time.thread_time()
        for item in items:
            item.wake()
        # The loop runs callbacks in order: this one comes after every stream woken above has begun its write. What is
        # added before it waits for it: only then is the burst's cost known.
        self._loop.call_soon(self._end_of_burst, started)

    def _end_of_burst(self, started: float) -> None:
        wait_s = min((time.thread_time() - started) * self._duty, self._max_wait_s)
        self._not_before = self._loop.time() + wait_s
        self._is_scheduled = False
        if self._waiting:
            self._schedule()
