"""The pool of KV blocks: who holds which and which come free next; knows nothing of sequences, hashes or steps.

Block 0 is the null block: it is never handed out. A block is either held (ref count above 0) or in the free list,
which is in order of reuse: blocks without cached content first, then cached ones, least recently used first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from quire_scheduler.prefix_index import PrefixIndex

NULL_BLOCK = 0


class BlockPool:
    """Hands out block ids. `num_blocks` counts the null block, as the worker's pool does."""

    def __init__(self, num_blocks: int, index: PrefixIndex, *, may_be_empty: bool = False) -> None:
        """may_be_empty: nobody will ask for a block, so there need be none but the null block."""
        if num_blocks < (1 if may_be_empty else 2):
            raise ValueError(f"num_blocks must be at least 2 (one is the null block), got {num_blocks}")
        self.num_total = num_blocks - 1
        self._index = index
        self._ref_counts = [0] * num_blocks
        # Ordered dict as linked list: take from the front, and a hit takes a block out of the middle, both O(1).
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, num_blocks))

    @property
    def num_free(self) -> int:
        """Blocks that can be handed out, those with cached content included."""
        return len(self._free)

    def ref_count(self, block_id: int) -> int:
        """How many holders the block has."""
        return self._ref_counts[block_id]

    def num_unheld(self, block_ids: Sequence[int]) -> int:
        """How many of them are in the free list now: what pinning them would take from it."""
        ref_counts = self._ref_counts
        return sum(1 for block_id in block_ids if ref_counts[block_id] == 0)

    def allocate_one(self) -> int:
        """A block of one's own, its cached content forgotten. The caller has checked `num_free`."""
        block_id, _ = self._free.popitem(last=False)
        self._ref_counts[block_id] = 1
        self._index.remove(block_id)
        return block_id

    def allocate(self, num_blocks: int) -> list[int]:
        """`num_blocks` blocks of one's own. The caller has checked `num_free`."""
        return [self.allocate_one() for _ in range(num_blocks)]

    def pin(self, block_ids: Sequence[int]) -> None:
        """Adds a holder to each block, so that it can neither be evicted nor written."""
        ref_counts = self._ref_counts
        for block_id in block_ids:
            if ref_counts[block_id] == 0:
                del self._free[block_id]
            ref_counts[block_id] += 1

    def release(self, block_ids: Sequence[int]) -> None:
        """Takes one holder from each block of a table (in its order). What nobody holds comes free, tail first, so
        that the end of a prefix is reused before its beginning, without which the end is worth nothing."""
        ref_counts = self._ref_counts
        free = self._free
        for block_id in reversed(block_ids):
            assert ref_counts[block_id] > 0, f"block {block_id} released too often"
            ref_counts[block_id] -= 1
            if ref_counts[block_id] == 0:
                free[block_id] = None
                if not self._index.is_cached(block_id):
                    free.move_to_end(block_id, last=False)

    def forget_free(self) -> int:
        """Drops the cached content of every block that nobody holds; answers how many."""
        cached = [block_id for block_id in self._free if self._index.is_cached(block_id)]
        for block_id in cached:
            self._index.remove(block_id)
        return len(cached)
