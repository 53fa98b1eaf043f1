"""split_bfloat16 against plain torch."""

import numpy as np
import pytest
import torch

from quire_kernels.split_bfloat16 import cpu
from quire_kernels.split_bfloat16.cases import CASES
from quire_kernels.split_bfloat16.op import split_bfloat16
from quire_kernels.split_bfloat16.reference import split_bfloat16_reference


@pytest.mark.parametrize("case", CASES, ids=str)
def test_equals_reference(case):
    """Parts are the same bits, and sums of blocks agree."""
    x = case.x()
    parts, sums = split_bfloat16(x)
    expected_parts, expected_sums = split_bfloat16_reference(x)
    assert torch.equal(parts, expected_parts)
    torch.testing.assert_close(sums, expected_sums, atol=1e-5 * case.scale, rtol=1e-5)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_parts_add_up_exactly(case):
    """No bit of a float32 is lost in its three parts."""
    x = case.x()
    assert torch.equal(split_bfloat16(x)[0].double().sum(0), x.double())


def test_what_cannot_be_split_is_refused():
    """Columns that don't fill blocks, and room that is too small, are ValueErrors."""
    with pytest.raises(ValueError, match="multiple of 32"):
        split_bfloat16(torch.zeros(2, 33))
    with pytest.raises(ValueError, match="too small"):
        cpu.bind(np.zeros((4, 64), np.float32), 64, np.array([4]), cpu.room(4, 32))
