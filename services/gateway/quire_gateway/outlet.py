"""Where a client's stream waits for news of its sequences.

One job: wake one reader when any of its sequences has something to take, once per burst however much that is, and hand
on failures. There is one outlet per client call, also for several prompts. Knows neither gRPC nor JSON.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from quire_gateway.pacing import Pacer

if TYPE_CHECKING:
    from quire_gateway.sequences import SequenceState


class Outlet:
    """Single reader. Producers call touch, fail and accept from the same event loop."""

    __slots__ = (
        "_accepted",
        "_dirty",
        "_error",
        "_is_queued",
        "_is_released",
        "_num_unaccepted",
        "_pacer",
        "_waiter",
    )

    def __init__(self, pacer: Pacer) -> None:
        self._pacer = pacer
        self._dirty: list[SequenceState] = []
        self._error: Exception | None = None
        self._is_queued = False
        self._is_released = False
        self._waiter: asyncio.Future[None] | None = None
        self._num_unaccepted = 0
        self._accepted: asyncio.Future[None] | None = None

    def expect(self) -> None:
        """One more request of this call waits for the engine's acceptance."""
        self._num_unaccepted += 1

    def accept(self) -> None:
        """One of them was accepted. Called once per request."""
        self._num_unaccepted -= 1
        if self._num_unaccepted <= 0:
            self._resolve_accepted()

    def touch(self, sequence: SequenceState) -> None:
        """`sequence` has news."""
        if not sequence.is_dirty:
            sequence.is_dirty = True
            self._dirty.append(sequence)
        if not self._is_queued and not self._is_released:
            self._is_queued = True
            self._pacer.add(self)

    def fail(self, error: Exception) -> None:
        """The call cannot be completed: the reader gets `error` after what is there already. The first one counts."""
        if self._error is None:
            self._error = error
            self._resolve_accepted()
            self.wake()

    def wake(self) -> None:
        """Let the reader run; called by the pacer."""
        self._is_queued = False
        self._is_released = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def wait_accepted(self, timeout_s: float) -> None:
        """Return when the engine has accepted every request of the call, or after `timeout_s` without a refusal.

        Raises what `fail` was given if that comes first.
        """
        if self._num_unaccepted > 0 and self._error is None:
            self._accepted = asyncio.get_running_loop().create_future()
            await asyncio.wait((self._accepted,), timeout=timeout_s)
            self._accepted = None
        if self._error is not None and not self._dirty:
            raise self._error

    async def take(self) -> list[SequenceState]:
        """The sequences with news, in the order they got it; waits until there are some. Raises what `fail` got."""
        if not self._is_released:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        self._is_released = False
        dirty, self._dirty = self._dirty, []
        for sequence in dirty:
            sequence.is_dirty = False
        if self._error is not None:
            self._is_released = True
            if not dirty:
                raise self._error
        return dirty

    def _resolve_accepted(self) -> None:
        if self._accepted is not None and not self._accepted.done():
            self._accepted.set_result(None)
