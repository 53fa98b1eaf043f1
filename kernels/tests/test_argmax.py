"""argmax against plain torch."""

import pytest
import torch

from quire_kernels.argmax.cases import CASES
from quire_kernels.argmax.op import argmax
from quire_kernels.argmax.reference import argmax_reference


@pytest.mark.parametrize("case", CASES, ids=str)
def test_equals_reference(case):
    """The first of equal maxima wins, in every row."""
    assert torch.equal(argmax(case.x()), argmax_reference(case.x()))


def test_an_empty_row_is_refused():
    """There is no largest of no values."""
    with pytest.raises(ValueError, match="at least one column"):
        argmax(torch.zeros(2, 0))
