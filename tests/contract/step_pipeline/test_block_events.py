"""SubscribeBlockEvents: a subscriber's picture of the prefix index is the index."""

import asyncio

from quire.scheduler.v1 import events_pb2, load_pb2


class Picture:
    """What a subscriber knows; a task follows the stream."""

    def __init__(self, stub):
        self.call = stub.SubscribeBlockEvents(events_pb2.SubscribeBlockEventsRequest())
        self.parents = {}
        self.batches = []
        self._changed = asyncio.Event()
        self._reader = asyncio.create_task(self._read())

    async def until(self, condition):
        async with asyncio.timeout(10):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    async def _read(self):
        async for batch in self.call:
            if batch.is_snapshot:
                self.parents.clear()
            for block in batch.stored:
                assert not block.parent_hash or block.parent_hash in self.parents
                self.parents[block.hash] = block.parent_hash
            for block_hash in batch.removed_hashes:
                del self.parents[block_hash]
            self.batches.append(batch)
            self._changed.set()

    async def close(self):
        self.call.cancel()
        await asyncio.gather(self._reader, return_exceptions=True)


async def test_events_follow_the_index(running):
    """A snapshot first; then blocks stored with their parents, in one epoch with rising numbers."""
    gateway, picture = await running.gateway(), Picture(running.stub)
    await picture.until(lambda: picture.batches)
    assert picture.batches[0].is_snapshot
    await gateway.submit(1, range(40), max_tokens=30)
    await gateway.until_finished(1)
    # 69 computed tokens are four full blocks.
    await picture.until(lambda: len(picture.parents) == 4)
    assert list(picture.parents.values()).count(b"") == 1
    numbers = [batch.sequence_number for batch in picture.batches]
    assert numbers == sorted(numbers)
    assert len({batch.epoch for batch in picture.batches}) == 1
    late = Picture(running.stub)
    await late.until(lambda: late.batches)
    assert late.parents == picture.parents
    await picture.close()
    await late.close()


async def test_reset_removes_every_block(running):
    """ResetPrefixCache empties the subscriber's picture block by block."""
    gateway, picture = await running.gateway(), Picture(running.stub)
    await gateway.submit(1, range(40))
    await gateway.until_finished(1)
    await picture.until(lambda: len(picture.parents) == 2)
    await running.stub.ResetPrefixCache(load_pb2.ResetPrefixCacheRequest())
    await picture.until(lambda: not picture.parents)
    await picture.close()


async def test_worker_loss_begins_a_new_epoch(running):
    """When the worker is lost, subscribers get an empty snapshot of a new epoch."""
    gateway, picture = await running.gateway(), Picture(running.stub)
    await gateway.submit(1, range(40))
    await gateway.until_finished(1)
    await picture.until(lambda: picture.parents)
    await running.stop_worker()
    await picture.until(lambda: not picture.parents)
    assert picture.batches[-1].is_snapshot
    assert picture.batches[-1].epoch > picture.batches[0].epoch
    await picture.close()
