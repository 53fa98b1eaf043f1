"""The unfinished requests: by owner and handle, and by deadline; knows nothing of how they run."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from heapq import heappop, heappush

from quire_scheduler.request import Request


class Registry:
    """Finds requests. A request is in here from its acceptance until its last sequence has ended."""

    def __init__(self) -> None:
        self._by_owner: dict[Hashable, dict[int, Request]] = {}
        self._by_order: dict[int, Request] = {}
        # (deadline, arrival order): holds no request, so that what has ended costs two numbers until its deadline.
        self._deadlines: list[tuple[float, int]] = []

    def __len__(self) -> int:
        return len(self._by_order)

    def __iter__(self) -> Iterator[Request]:
        return iter(list(self._by_order.values()))

    def get(self, owner: Hashable, handle: int) -> Request | None:
        """The owner's request with this handle."""
        return self._by_owner.get(owner, {}).get(handle)

    def of_owner(self, owner: Hashable) -> list[Request]:
        """All of the owner's requests."""
        return list(self._by_owner.get(owner, {}).values())

    def add(self, request: Request) -> None:
        """Adds an accepted request; its `arrival_order` is set and unique."""
        self._by_owner.setdefault(request.owner, {})[request.handle] = request
        self._by_order[request.arrival_order] = request
        if request.deadline_s is not None:
            heappush(self._deadlines, (request.deadline_s, request.arrival_order))

    def remove(self, request: Request) -> None:
        """The request's last sequence has ended."""
        handles = self._by_owner[request.owner]
        del handles[request.handle]
        if not handles:
            del self._by_owner[request.owner]
        del self._by_order[request.arrival_order]

    def next_deadline_s(self) -> float | None:
        """The earliest deadline of an unfinished request."""
        while self._deadlines and self._deadlines[0][1] not in self._by_order:
            heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    def pop_expired(self, now_s: float) -> list[Request]:
        """Unfinished requests whose deadline is not after `now_s`; each is answered once."""
        expired = []
        while self._deadlines and self._deadlines[0][0] <= now_s:
            request = self._by_order.get(heappop(self._deadlines)[1])
            if request is not None:
                expired.append(request)
        return expired
