"""Block pool and prefix index alone: order of reuse, ref counts, duplicates, hashes."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from quire_scheduler.block_pool import NULL_BLOCK, BlockPool
from quire_scheduler.events import BlockEvents
from quire_scheduler.prefix_cache import PrefixCache
from quire_scheduler.prefix_index import PrefixIndex, chain_hashes, encode_token_ids, root_hash
from quire_scheduler.request import Request, Sequence


def make_pool(num_blocks: int = 8) -> tuple[BlockPool, PrefixIndex]:
    index = PrefixIndex(num_blocks, 4, BlockEvents())
    return BlockPool(num_blocks, index), index


def test_the_null_block_is_never_handed_out():
    """A pool of 8 blocks hands out 7, none of them block 0."""
    pool, _ = make_pool(8)
    assert pool.num_total == pool.num_free == 7
    assert NULL_BLOCK not in pool.allocate(7)
    assert pool.num_free == 0
    with pytest.raises(ValueError, match="at least 2"):
        make_pool(1)


def test_a_freed_table_is_reused_tail_first():
    """Cached blocks of one sequence are evicted from the end of its prefix towards the beginning."""
    pool, index = make_pool(5)
    table = pool.allocate(4)
    for block_id in table:
        index.insert(block_id, bytes([block_id]), b"")
    pool.release(table)
    assert pool.allocate(4) == table[::-1]
    assert index.num_cached_blocks == 0


def test_plain_blocks_are_reused_before_cached_ones():
    """A block without cached content comes next even if it was freed last."""
    pool, index = make_pool(4)
    cached, plain, other = pool.allocate(3)
    index.insert(cached, b"hash", b"")
    pool.release([cached])
    pool.release([other])
    pool.release([plain])
    assert pool.allocate(3) == [plain, other, cached]


def test_the_least_recently_used_prefix_is_evicted_first():
    """A hit moves a cached block to the end of the line when it is freed again."""
    pool, index = make_pool(3)
    first, second = pool.allocate(2)
    index.insert(first, b"1", b"")
    index.insert(second, b"2", b"")
    pool.release([first])
    pool.release([second])
    pool.pin([first])
    assert pool.num_unheld([first, second]) == 1
    pool.release([first])
    assert pool.allocate(1) == [second]
    assert index.find([b"1"]) == [first]


def test_releasing_too_often_is_a_bug():
    """A block without holders cannot be released."""
    pool, _ = make_pool()
    table = pool.allocate(1)
    pool.release(table)
    with pytest.raises(AssertionError, match="released too often"):
        pool.release(table)


def test_duplicates_stand_in_for_each_other():
    """Two blocks with the same content: the prefix is found until the last is gone, whichever goes first."""
    for gone_first in (0, 1):
        _, index = make_pool()
        blocks = [3, 5]
        for block_id in blocks:
            index.insert(block_id, b"same", b"")
        index.insert(3, b"other", b"")
        assert index.num_cached_blocks == 2
        index.remove(blocks[gone_first])
        index.remove(blocks[gone_first])
        assert index.find([b"same"]) == [blocks[1 - gone_first]]
        index.remove(blocks[1 - gone_first])
        assert index.find([b"same"]) == []
        assert index.events.number == 2


def test_find_stops_at_the_first_gap():
    """Only an unbroken run from the start of the chain is a hit."""
    _, index = make_pool()
    index.insert(1, b"a", b"")
    index.insert(3, b"c", b"b")
    assert index.find([b"a", b"b", b"c"]) == [1]


def test_hashes_are_the_same_in_every_process():
    """Replicas and restarts agree on hashes: the value is fixed."""
    root = root_hash("adapter@1", "salt")
    assert chain_hashes(root, [1, 2, 3, 4, 5, 6, 7, 8, 9], 4)[1].hex() == GOLDEN_HASH
    assert encode_token_ids([1, 258]) == b"\x01\x00\x00\x00\x02\x01\x00\x00"


# python -c "from quire_scheduler.prefix_index import *;
#            print(chain_hashes(root_hash('adapter@1', 'salt'), range(1, 10), 4)[1].hex())"
GOLDEN_HASH = "4119570dc596cec1dce510e84c35259cea7a62bbc1152fa07835cabc7a1bdb31"


def test_extra_keys_cannot_be_shifted_into_each_other():
    """Adapter, salt and media are separated: moving a letter between them changes the root."""
    roots = {root_hash("ab", "c"), root_hash("a", "bc"), root_hash("abc", ""), root_hash("ab", "", (b"c",))}
    assert len(roots) == 4


@pytest.mark.parametrize("num_prompt", [1, 3, 4, 5, 8, 11])
def test_a_sequences_hashes_do_not_depend_on_when_they_were_made(num_prompt):
    """Hashing block by block as output arrives equals hashing all tokens at once."""
    tokens = list(range(100, 130))
    request = Request("g", 1, tokens[:num_prompt])
    sequence = Sequence(request, 0, [], 64)
    cache = PrefixCache(make_pool()[1], 4, True)
    for token in tokens[num_prompt:]:
        sequence.output_token_ids.append(token)
        cache.hashes(sequence, sequence.num_tokens // 4)
    assert cache.hashes(sequence, 7) == chain_hashes(root_hash("", ""), tokens, 4)
    sibling = Sequence(request, 1, tokens[num_prompt:], 64)
    assert cache.hashes(sibling, 7) == sequence.block_hashes


class PoolMachine(RuleBasedStateMachine):
    """Allocates, pins, caches and releases against plain counters."""

    def __init__(self):
        super().__init__()
        self.pool, self.index = make_pool(10)
        self.tables: list[list[int]] = []

    @rule(count=st.integers(1, 4))
    def allocate(self, count):
        if self.pool.num_free >= count:
            fresh = self.pool.allocate(count)
            held = {block_id for table in self.tables for block_id in table}
            assert not held & set(fresh)
            assert not any(self.index.is_cached(block_id) for block_id in fresh)
            self.tables.append(fresh)

    @rule(data=st.data(), digest=st.integers(0, 5))
    def cache(self, data, digest):
        if self.tables:
            table = data.draw(st.sampled_from(self.tables))
            self.index.insert(data.draw(st.sampled_from(table)), bytes([digest]), b"")

    @rule(digest=st.integers(0, 5))
    def hit(self, digest):
        found = self.index.find([bytes([digest])])
        if found:
            self.pool.pin(found)
            self.tables.append(found)

    @rule(data=st.data())
    def release(self, data):
        if self.tables:
            index = data.draw(st.integers(0, len(self.tables) - 1))
            self.pool.release(self.tables.pop(index))

    @rule()
    def forget_free(self):
        self.pool.forget_free()

    @invariant()
    def counts_agree(self):
        holders = Counter(block_id for table in self.tables for block_id in table)
        assert all(self.pool.ref_count(i) == holders[i] for i in range(10))
        assert self.pool.num_free == 9 - len(holders)
        assert self.index.num_cached_blocks == sum(self.index.is_cached(i) for i in range(10))
        for digest in range(6):
            for block_id in self.index.find([bytes([digest])]):
                assert self.index.is_cached(block_id)


PoolMachine.TestCase.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, derandomize=True
)
TestPoolMachine = PoolMachine.TestCase
