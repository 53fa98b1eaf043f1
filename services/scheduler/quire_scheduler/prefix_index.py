"""Which blocks hold which prefixes: hash chain and lookup; knows nothing of ref counts, sequences or planning.

A block's hash is SHA-256 over (hash of the block before it, its token ids); the chain starts from a root over
(adapter, cache salt, hashes of the media in the prompt). So equal hashes mean equal tokens from the start of the
prompt, under the same adapter content, salt and media. SHA-256 because a collision would hand one tenant another's
context: it costs about 1 us a block of 16 tokens, less than the compute that a hit saves; it can't be made to collide
on purpose; and it is the same in every process, so that routers may compare hashes of different replicas.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Sequence
from hashlib import sha256

from quire_scheduler.events import BlockEvents, BlockStored


def root_hash(adapter: str, cache_salt: str, media_hashes: Iterable[bytes] = ()) -> bytes:
    """Start of the chain of every prefix under this adapter (name and version), salt and media."""
    parts = (b"quire-prefix-1", adapter.encode(), cache_salt.encode(), *media_hashes)
    return sha256(b"".join(len(part).to_bytes(4, "little") + part for part in parts)).digest()


def encode_token_ids(token_ids: Sequence[int]) -> bytes:
    """Token ids as little-endian 32-bit integers."""
    packed = array("I", token_ids)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def chain_hashes(parent: bytes, token_ids: Sequence[int], block_size: int) -> list[bytes]:
    """Hashes of the full blocks of `token_ids`, the first one chained to `parent`."""
    num_full_tokens = len(token_ids) // block_size * block_size
    data = encode_token_ids(token_ids[:num_full_tokens])
    stride = 4 * block_size
    hashes = []
    for offset in range(0, len(data), stride):
        parent = sha256(parent + data[offset : offset + stride]).digest()
        hashes.append(parent)
    return hashes


class PrefixIndex:
    """Finds blocks by hash. Several blocks may hold the same content: block tables are append-only, so duplicates
    that were filled side by side stay; the index names one and falls back to another when it is evicted."""

    def __init__(self, num_blocks: int, block_size: int, events: BlockEvents) -> None:
        self.block_size = block_size
        self.events = events
        self._hash_of: list[bytes | None] = [None] * num_blocks
        self._blocks: dict[bytes, int] = {}
        self._duplicates: dict[bytes, list[int]] = {}
        self._parents: dict[bytes, bytes] = {}
        self.num_cached_blocks = 0

    def find(self, hashes: Iterable[bytes]) -> list[int]:
        """Blocks of the longest indexed run from the start of the chain."""
        blocks = self._blocks
        found = []
        for digest in hashes:
            block_id = blocks.get(digest)
            if block_id is None:
                break
            found.append(block_id)
        return found

    def is_cached(self, block_id: int) -> bool:
        """Whether the block's content can be found."""
        return self._hash_of[block_id] is not None

    def insert(self, block_id: int, digest: bytes, parent: bytes) -> None:
        """Makes a filled block findable; `parent` is empty for a first block. No-op on a block already indexed."""
        if self._hash_of[block_id] is not None:
            return
        self._hash_of[block_id] = digest
        self.num_cached_blocks += 1
        if digest in self._blocks:
            self._duplicates.setdefault(digest, []).append(block_id)
            return
        self._blocks[digest] = block_id
        self._parents[digest] = parent
        self.events.stored(digest, parent, self.block_size)

    def remove(self, block_id: int) -> None:
        """Forgets the block; no-op if it is not indexed."""
        digest = self._hash_of[block_id]
        if digest is None:
            return
        self._hash_of[block_id] = None
        self.num_cached_blocks -= 1
        duplicates = self._duplicates.get(digest)
        if duplicates is None:
            del self._blocks[digest]
            del self._parents[digest]
            self.events.removed(digest)
            return
        if self._blocks[digest] == block_id:
            self._blocks[digest] = duplicates.pop()
        else:
            duplicates.remove(block_id)
        if not duplicates:
            del self._duplicates[digest]

    def snapshot(self) -> list[BlockStored]:
        """The whole index as of the last event's number, in the order of entry."""
        epoch, number = self.events.epoch, self.events.number
        return [
            BlockStored(epoch, number, digest, parent, self.block_size)
            for digest, parent in self._parents.items()
        ]
