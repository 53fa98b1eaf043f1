"""Batches of index changes for subscribers."""

import asyncio

import pytest

from quire_scheduler import block_event_feed
from quire_scheduler.block_event_feed import BlockEventFeed
from quire_scheduler.events import BlockEvents, BlockStored


class Index:
    """A prefix index that is only its events."""

    def __init__(self):
        self.events = BlockEvents()
        self.blocks = {}
        self.feed = BlockEventFeed(self.events, self.snapshot)

    def snapshot(self):
        return [BlockStored(self.events.epoch, self.events.number, h, p, 16) for h, p in self.blocks.items()]

    def store(self, block_hash, parent=b""):
        self.blocks[block_hash] = parent
        self.events.stored(block_hash, parent, 16)

    def remove(self, block_hash):
        del self.blocks[block_hash]
        self.events.removed(block_hash)


@pytest.fixture
def index():
    return Index()


async def test_begins_with_a_snapshot_and_goes_on_with_changes(index):
    """The first batch is the whole index, the next has what changed since, under its last number."""
    index.store(b"a")
    batches = index.feed.subscribe()
    first = await anext(batches)
    assert (first.is_snapshot, [block.block_hash for block in first.stored], first.number) == (
        True,
        [b"a"],
        1,
    )
    index.store(b"b", b"a")
    index.remove(b"a")
    second = await anext(batches)
    assert not second.is_snapshot
    assert [(block.block_hash, block.parent_hash) for block in second.stored] == [(b"b", b"a")]
    assert second.removed == [b"a"]
    assert second.number == 3
    await batches.aclose()


async def test_change_and_its_undoing_cancel_out(index):
    """A hash stored and removed within a batch, or removed and stored, is in neither list."""
    index.store(b"old")
    batches = index.feed.subscribe()
    await anext(batches)
    index.store(b"new")
    index.remove(b"new")
    index.remove(b"old")
    index.store(b"old")
    batch = await anext(batches)
    assert (batch.stored, batch.removed, batch.number) == ([], [], 5)
    await batches.aclose()


async def test_blocks_come_after_their_parents(index):
    """A parent stored again within the batch is still before its child."""
    batches = index.feed.subscribe()
    await anext(batches)
    index.store(b"p")
    index.remove(b"p")
    index.store(b"p")
    index.store(b"c", b"p")
    assert [block.block_hash for block in (await anext(batches)).stored] == [b"p", b"c"]
    await batches.aclose()


async def test_slow_subscriber_gets_a_snapshot_instead_of_a_gap(index, monkeypatch):
    """With too much unread the next batch is the whole index, and changes go on from there."""
    monkeypatch.setattr(block_event_feed, "MAX_BACKLOG", 3)
    batches = index.feed.subscribe()
    await anext(batches)
    for number in range(6):
        index.store(bytes([number]))
    batch = await anext(batches)
    assert batch.is_snapshot
    assert len(batch.stored) == 6
    index.store(b"more")
    assert [block.block_hash for block in (await anext(batches)).stored] == [b"more"]
    await batches.aclose()


async def test_clearing_is_a_snapshot_of_a_new_epoch(index):
    """When the worker is lost, everything known is void."""
    index.store(b"a")
    batches = index.feed.subscribe()
    epoch = (await anext(batches)).epoch
    index.blocks.clear()
    index.events.cleared()
    batch = await anext(batches)
    assert (batch.is_snapshot, batch.stored, batch.epoch) == (True, [], epoch + 1)
    await batches.aclose()


async def test_nobody_subscribed_costs_nothing(index):
    """The index has a sink only while someone listens."""
    assert index.events.sink is None
    batches = index.feed.subscribe()
    await anext(batches)
    assert index.events.sink is not None
    waiting = asyncio.create_task(anext(batches))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await batches.aclose()
    assert index.events.sink is None
    assert index.feed.num_subscribers == 0
