"""Hands changes of the prefix index to subscribers, in batches; one that reads too slowly gets a new snapshot, no gap.

Knows nothing of messages or streams.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field

from quire_scheduler.events import AllCleared, BlockEvent, BlockEvents, BlockRemoved, BlockStored

# Changes kept for one subscriber; beyond that a snapshot is cheaper than the backlog.
MAX_BACKLOG = 8192


@dataclass(slots=True)
class BlockEventBatch:
    """Changes up to `number` of `epoch`; with `is_snapshot` all before is void and `stored` is the whole index.

    A hash that was stored and removed within the batch is in neither list, so the order between them has no meaning.
    """

    epoch: int
    number: int
    is_snapshot: bool = False
    stored: list[BlockStored] = field(default_factory=list)
    removed: list[bytes] = field(default_factory=list)


class _Subscriber:
    """What one subscriber has not been given yet."""

    def __init__(self) -> None:
        self.backlog: list[BlockEvent] = []
        self.needs_snapshot = True
        self.wake = asyncio.Event()
        self.wake.set()

    def put(self, event: BlockEvent) -> None:
        if self.needs_snapshot:
            return
        if isinstance(event, AllCleared) or len(self.backlog) >= MAX_BACKLOG:
            self.needs_snapshot = True
            self.backlog.clear()
        else:
            self.backlog.append(event)
        self.wake.set()


class BlockEventFeed:
    """The subscribers of one index. Nobody subscribed costs the scheduler nothing."""

    def __init__(self, events: BlockEvents, snapshot: Callable[[], list[BlockStored]]) -> None:
        self._events = events
        self._snapshot = snapshot
        self._subscribers: set[_Subscriber] = set()

    @property
    def num_subscribers(self) -> int:
        """How many listen."""
        return len(self._subscribers)

    async def subscribe(self) -> AsyncGenerator[BlockEventBatch, None]:
        """Batches for ever, beginning with a snapshot. Each has all changes since the last one was taken."""
        subscriber = _Subscriber()
        self._subscribers.add(subscriber)
        self._events.sink = self._publish
        try:
            while True:
                await subscriber.wake.wait()
                subscriber.wake.clear()
                yield self._take(subscriber)
        finally:
            self._subscribers.discard(subscriber)
            if not self._subscribers:
                self._events.sink = None

    def _publish(self, event: BlockEvent) -> None:
        for subscriber in self._subscribers:
            subscriber.put(event)

    def _take(self, subscriber: _Subscriber) -> BlockEventBatch:
        batch = BlockEventBatch(self._events.epoch, self._events.number)
        if subscriber.needs_snapshot:
            subscriber.needs_snapshot = False
            batch.is_snapshot = True
            batch.stored = self._snapshot()
            return batch
        changed: dict[bytes, BlockEvent] = {}
        known: set[bytes] = set()
        for event in subscriber.backlog:
            assert isinstance(event, BlockStored | BlockRemoved)
            if event.block_hash not in changed and isinstance(event, BlockRemoved):
                known.add(event.block_hash)
            # Taken out and put in again, so that a block comes after its parent.
            changed.pop(event.block_hash, None)
            changed[event.block_hash] = event
        subscriber.backlog.clear()
        for block_hash, event in changed.items():
            if isinstance(event, BlockStored):
                # Removed and stored again: the subscriber has it still.
                if block_hash not in known:
                    batch.stored.append(event)
            elif block_hash in known:
                batch.removed.append(block_hash)
        return batch
