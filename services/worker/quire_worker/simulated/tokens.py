"""Deterministic tokens: which id a simulated sequence samples at a position. Knows nothing of steps or slots.

The id depends on (seed, sequence index, position) alone, as the real sampler's randomness does, so a sequence that is
preempted, migrated or recomputed goes on exactly as it would have.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

UInt64Array = NDArray[np.uint64]

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_SHIFTS = (np.uint64(30), np.uint64(27), np.uint64(31))
_STEP = np.uint64(_GOLDEN)


def sequence_key(seed: int, sequence_index: int) -> int:
    """The 64-bit key of one sequence's tokens."""
    return (seed * _GOLDEN + (sequence_index + 1) * 0xD1B54A32D192ED03) & _MASK


def token_ids_at(keys: UInt64Array, positions: UInt64Array, first_id: int, num_ids: int) -> NDArray[np.int64]:
    """Ids in [first_id, first_id + num_ids) for sequences `keys` at `positions`, elementwise; splitmix64."""
    mixed = keys + positions * _STEP
    mixed ^= mixed >> _SHIFTS[0]
    mixed *= _MIX_1
    mixed ^= mixed >> _SHIFTS[1]
    mixed *= _MIX_2
    mixed ^= mixed >> _SHIFTS[2]
    # The high half, scaled: no division, and no bias worth the name.
    scaled = ((mixed >> np.uint64(32)) * np.uint64(num_ids)) >> np.uint64(32)
    return scaled.astype(np.int64) + first_id
