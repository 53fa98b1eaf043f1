"""Changes of the prefix index as numbered events, for subscribers outside; knows nothing of who listens or how.

Within an epoch numbers rise by one from 1, so a subscriber sees a gap. A new epoch begins with AllCleared: every block
known before is gone (the worker was lost).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BlockStored:
    """A block whose content can be shared from now on; `parent_hash` is empty for the first block of a prefix."""

    epoch: int
    number: int
    block_hash: bytes
    parent_hash: bytes
    num_tokens: int


@dataclass(frozen=True, slots=True)
class BlockRemoved:
    """No block with this hash is left."""

    epoch: int
    number: int
    block_hash: bytes


@dataclass(frozen=True, slots=True)
class AllCleared:
    """The index was emptied; `epoch` is the new one and numbering starts again."""

    epoch: int


BlockEvent = BlockStored | BlockRemoved | AllCleared


class BlockEvents:
    """Numbers the changes and hands them to the sink, if there is one."""

    def __init__(self, sink: Callable[[BlockEvent], None] | None = None, epoch: int = 1) -> None:
        self.sink = sink
        self.epoch = epoch
        # Number of the last event of this epoch.
        self.number = 0

    def stored(self, block_hash: bytes, parent_hash: bytes, num_tokens: int) -> None:
        """The first block with this hash entered the index."""
        self.number += 1
        if self.sink is not None:
            self.sink(BlockStored(self.epoch, self.number, block_hash, parent_hash, num_tokens))

    def removed(self, block_hash: bytes) -> None:
        """The last block with this hash left the index."""
        self.number += 1
        if self.sink is not None:
            self.sink(BlockRemoved(self.epoch, self.number, block_hash))

    def cleared(self) -> None:
        """The whole index was dropped: a new epoch."""
        self.epoch += 1
        self.number = 0
        if self.sink is not None:
            self.sink(AllCleared(self.epoch))
