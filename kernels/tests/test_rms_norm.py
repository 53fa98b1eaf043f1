"""rms_norm against plain torch."""

import pytest
import torch

from quire_kernels.rms_norm.cases import CASES
from quire_kernels.rms_norm.op import rms_norm
from quire_kernels.rms_norm.reference import rms_norm_reference


@pytest.mark.parametrize("case", CASES, ids=str)
def test_equals_reference(case):
    """Rows of every size and scale are normalised."""
    x, weight = case.inputs()
    torch.testing.assert_close(
        rms_norm(x, weight, 1e-5), rms_norm_reference(x, weight, 1e-5), atol=1e-6, rtol=2e-6
    )


def test_mismatched_weight_is_refused():
    """A weight of another size is a ValueError."""
    with pytest.raises(ValueError, match="columns"):
        rms_norm(torch.zeros(2, 8), torch.ones(7), 1e-5)
