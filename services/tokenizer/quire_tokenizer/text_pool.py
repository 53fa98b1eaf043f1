"""Where the work on texts runs: short ones at once, long ones on a bounded pool of threads.

A thread hop costs more than a short text, and a long text would stop the event loop and with it every stream that is
being detokenised. The pool only keeps the loop free if the work itself lets go of the interpreter lock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from quire_servicekit.errors import QueueFull

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """`max_inline_chars`: longest text that is worked on at once. `max_waiting_chars`: bound of the pool's queue."""

    num_threads: int = 2
    max_inline_chars: int = 1024
    max_waiting_chars: int = 64_000_000


class TextPool:
    """Runs functions over texts of known length. Used from one event loop."""

    def __init__(self, limits: PoolLimits) -> None:
        self._limits = limits
        self._threads = ThreadPoolExecutor(limits.num_threads, thread_name_prefix="text")
        self._num_chars = 0

    async def run(self, num_chars: int, work: Callable[[], T]) -> T:
        """Return what `work` returns; raise QueueFull when too much text is waiting already.

        A cancelled caller's work is dropped, unless a thread has begun with it.
        """
        if num_chars <= self._limits.max_inline_chars:
            return work()
        if self._num_chars and self._num_chars + num_chars > self._limits.max_waiting_chars:
            raise QueueFull(message=f"{self._num_chars} characters wait to be tokenised, try again")
        self._num_chars += num_chars
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        finally:
            self._num_chars -= num_chars

    def close(self) -> None:
        """Drop what waits, and let the threads end."""
        self._threads.shutdown(wait=False, cancel_futures=True)
