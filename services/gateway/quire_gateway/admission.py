"""How many requests may be under way, in all and per tenant.

One job: count, and refuse beyond the limits. A permit is a context manager, so that it is returned on every path,
cancellation included.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from quire_servicekit.errors import QueueFull, Unavailable


class Admission:
    """Counts sequences under way. Not thread-safe: one event loop."""

    def __init__(
        self, *, max_in_flight: int, max_in_flight_per_tenant: int | None = None, retry_delay_s: float = 1.0
    ) -> None:
        self._max, self._max_per_tenant, self._retry_delay_s = (
            max_in_flight,
            max_in_flight_per_tenant,
            retry_delay_s,
        )
        self._per_tenant: dict[str, int] = {}
        self._idle = asyncio.Event()
        self._idle.set()
        #: New calls are refused; what runs goes on.
        self.is_draining = False
        #: Sequences under way.
        self.num_in_flight = 0

    @contextmanager
    def permit(self, tenant: str, num_sequences: int) -> Iterator[None]:
        """Hold `num_sequences` places. Raises QueueFull when there are not as many, Unavailable while draining.

        A call that is larger than the whole limit gets in while nothing else runs: it could never otherwise.
        """
        if self.is_draining:
            raise Unavailable("gateway", self._retry_delay_s, message="the gateway is draining")
        self._check(self.num_in_flight, num_sequences, self._max, "sequences under way")
        mine = self._per_tenant.get(tenant, 0)
        if self._max_per_tenant is not None:
            self._check(
                mine, num_sequences, self._max_per_tenant, f"sequences of tenant {tenant or 'anonymous'}"
            )
        self._per_tenant[tenant] = mine + num_sequences
        self.num_in_flight += num_sequences
        self._idle.clear()
        try:
            yield
        finally:
            self.num_in_flight -= num_sequences
            left = self._per_tenant[tenant] - num_sequences
            if left:
                self._per_tenant[tenant] = left
            else:
                del self._per_tenant[tenant]
            if self.num_in_flight == 0:
                self._idle.set()

    async def wait_idle(self) -> None:
        """Return when nothing is under way."""
        await self._idle.wait()

    def _check(self, current: int, wanted: int, limit: int, what: str) -> None:
        if current and current + wanted > limit:
            raise QueueFull(
                self._retry_delay_s,
                message=f"too many requests: {current} {what}, at most {limit}; retry in {self._retry_delay_s:g} s",
            )
