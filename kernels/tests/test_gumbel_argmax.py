"""gumbel_argmax: the numbers are Philox's, the draws follow the softmax, the kernel equals the reference."""

import numpy as np
import pytest
import torch

from quire_kernels.gumbel_argmax.cases import CASES
from quire_kernels.gumbel_argmax.op import gumbel_argmax
from quire_kernels.gumbel_argmax.random import random_words, uniforms
from quire_kernels.gumbel_argmax.reference import gumbel_argmax_reference


@pytest.mark.parametrize("case", CASES, ids=str)
def test_equals_reference(case):
    """The kernel draws the tokens that plain numpy draws, and none that can't be drawn."""
    logits, rows = case.logits(), range(case.rows)
    seeds = [(1 << 64) - 1 - 977 * row for row in rows]
    drawn = gumbel_argmax(logits, seeds, [row % 3 for row in rows], [5 * row for row in rows]).tolist()
    expected = [gumbel_argmax_reference(logits[row].numpy(), seeds[row], row % 3, 5 * row) for row in rows]
    assert drawn == expected
    assert all(torch.isfinite(logits[row, token]) for row, token in enumerate(drawn))


def test_random_words_are_philox():
    """Counter and key in, the words that numpy's own Philox4x32-10 relatives publish out (Random123 test vectors)."""
    # Random123 kat_vectors: philox4x32 10, counter 0, key 0.
    assert [f"{word:08x}" for word in random_words(0, 0, 0, 4)] == [
        "6627e8d5",
        "e169c58d",
        "bc57ac4c",
        "9b00dbd8",
    ]


@pytest.mark.parametrize("change", [(1, 0, 0), (1 << 63, 0, 0), (0, 1, 0), (0, 0, 1)])
def test_every_part_of_the_key_matters(change):
    """Another seed (in either half), sequence or position gives other numbers."""
    assert (random_words(0, 0, 0, 64) != random_words(*change, 64)).mean() > 0.9


def test_uniforms_stay_in_range():
    """The smallest and the largest word give numbers above 0 and at most 1."""
    values = uniforms(np.array([0, 1, 0xFFFFFFFF], dtype=np.uint32))
    assert 0 < values[0] < values[1] < values[2] <= 1


def test_draws_follow_the_softmax():
    """Over positions, tokens come as often as their probabilities say (chi-square, fixed seed)."""
    logits = torch.tensor([[1.0, 0.0, -1.0, 2.0, float("-inf"), -3.0]])
    count = 20000
    drawn = gumbel_argmax(logits.expand(count, -1).contiguous(), [7] * count, [0] * count, list(range(count)))
    observed = torch.bincount(drawn, minlength=6).double()
    expected = torch.softmax(logits[0].double(), dim=0) * count
    kept = expected > 0
    assert observed[~kept].sum() == 0
    # 4 degrees of freedom: 18.5 is passed by one run in a thousand, and this one is fixed.
    assert ((observed - expected)[kept] ** 2 / expected[kept]).sum() < 18.5
