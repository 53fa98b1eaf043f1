"""Whether the gateway can serve: an engine, a tokenizer, and no drain.

One job: turn changes of the parts into the health service's answer. A part that is gone for a moment (a restart)
does not turn clients away: requests wait for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable


class Readiness:
    """Publishes readiness when it changes; a loss only after a grace period."""

    def __init__(
        self,
        parts: Callable[[], bool],
        is_draining: Callable[[], bool],
        publish: Callable[[bool], Awaitable[None]],
        *,
        unready_after_s: float,
    ) -> None:
        """parts: whether everything needed is there."""
        self._parts, self._is_draining, self._publish = parts, is_draining, publish
        self._unready_after_s = unready_after_s
        self._is_published = False
        self._lost_at: float | None = None
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def has_dependencies(self) -> bool:
        """Everything needed is there now."""
        return self._parts()

    def update(self) -> None:
        """Something changed; called from the event loop."""
        self._changed.set()

    def start(self) -> None:
        """Publish in the background."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name="readiness")

    async def close(self) -> None:
        """Stop publishing."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._changed.clear()
            wanted, wait_s = self._judge(loop.time())
            if wanted != self._is_published:
                self._is_published = wanted
                await self._publish(wanted)
            try:
                async with asyncio.timeout(wait_s):
                    await self._changed.wait()
            except TimeoutError:
                continue

    def _judge(self, now: float) -> tuple[bool, float | None]:
        """What to publish, and when to look again without being told."""
        if self._is_draining():
            return False, None
        if self._parts():
            self._lost_at = None
            return True, None
        if not self._is_published:
            return False, None
        if self._lost_at is None:
            self._lost_at = now
        left_s = self._lost_at + self._unready_after_s - now
        return (False, None) if left_s <= 0 else (True, left_s)
