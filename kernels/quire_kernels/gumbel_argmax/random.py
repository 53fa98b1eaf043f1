"""Philox4x32-10: the random number of a token depends on (seed, sequence index, position, token id) and nothing else.

Key: the seed's low and high word. Counter: (token id / 4, position, sequence index, 0); token id % 4 picks the word.
Plain numpy; the reference for every kernel that draws.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

ROUNDS = 10
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_WORD = np.uint64(0xFFFFFFFF)


def random_words(seed: int, sequence_index: int, position: int, size: int) -> NDArray[np.uint32]:
    """32 random bits for each of the token ids 0 .. size - 1."""
    groups = -(-size // 4)
    counter = [
        np.arange(groups, dtype=np.uint64),
        *(np.full(groups, v, np.uint64) for v in (position, sequence_index, 0)),
    ]
    keys = [seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF]
    for _ in range(ROUNDS):
        first = counter[0] * np.uint64(MULTIPLIERS[0])
        second = counter[2] * np.uint64(MULTIPLIERS[1])
        counter = [
            second >> np.uint64(32) ^ counter[1] ^ np.uint64(keys[0]),
            second & _WORD,
            first >> np.uint64(32) ^ counter[3] ^ np.uint64(keys[1]),
            first & _WORD,
        ]
        keys = [(key + step) & 0xFFFFFFFF for key, step in zip(keys, KEY_STEPS, strict=True)]
    return np.stack(counter, axis=1).astype(np.uint32).reshape(-1)[:size]


def uniforms(words: NDArray[np.uint32]) -> NDArray[np.float32]:
    """Uniform numbers in (0, 1] from random bits; fine-grained near 0, where it matters."""
    return (words.astype(np.float32) + np.float32(0.5)) * np.float32(2.0**-32)
