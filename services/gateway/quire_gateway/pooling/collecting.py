"""Where the vectors of a call arrive: one reader waits for all inputs, and the first that fails says which it was.

One job. Fulfils what ActiveRequest wants of an Outlet, without its pacing: a vector is written once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from quire_gateway.outlet import Outlet
from quire_gateway.pacing import Pacer

if TYPE_CHECKING:
    from quire_gateway.sequences import SequenceState


class Completions:
    """Indices of inputs that are complete, in the order in which they became so. Single reader."""

    def __init__(self) -> None:
        self._done: deque[int] = deque()
        self._error: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None

    def done(self, index: int) -> None:
        """An input's vector is there."""
        self._done.append(index)
        self._wake()

    def fail(self, error: Exception) -> None:
        """An input failed, and the call with it. The first one counts."""
        if self._error is None:
            self._error = error
            self._wake()

    async def take(self) -> list[int]:
        """Wait for inputs that are complete; raises what `fail` was given."""
        while not self._done and self._error is None:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        if self._error is not None:
            raise self._error
        taken = list(self._done)
        self._done.clear()
        return taken

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class InputOutlet(Outlet):
    """One input's side of it."""

    __slots__ = ("_completions", "_index", "_named")

    def __init__(
        self, pacer: Pacer, completions: Completions, index: int, named: Callable[[int, Exception], Exception]
    ) -> None:
        """named: an error of input `index` as the client is told it."""
        super().__init__(pacer)
        self._completions, self._index, self._named = completions, index, named

    def touch(self, sequence: SequenceState) -> None:
        """Its sequence ended: a pooled one has no other news."""
        self._completions.done(self._index)

    def fail(self, error: Exception) -> None:
        """It cannot be completed."""
        self._completions.fail(self._named(self._index, error))
