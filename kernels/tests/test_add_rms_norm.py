"""add_rms_norm against plain torch in float64."""

import pytest
import torch

from quire_kernels.add_rms_norm.cases import CASES
from quire_kernels.add_rms_norm.op import add_rms_norm
from quire_kernels.add_rms_norm.reference import add_rms_norm_reference


@pytest.mark.parametrize("case", CASES, ids=str)
def test_equals_reference(case, place, assert_close):
    """The residual is the rounded sum bit by bit, and the norm is the norm of that."""
    inputs = case.inputs(place[1], place[0])
    residual, reference = add_rms_norm_reference(**inputs)
    out = torch.full_like(inputs["residual"], float("nan"))
    add_rms_norm(**inputs, out=out)
    assert torch.equal(inputs["residual"], residual)
    assert_close(out, reference)


def test_what_cannot_run_is_refused(place):
    """Shapes that do not fit are a ValueError."""
    inputs = CASES[1].inputs(place[1], place[0])
    with pytest.raises(ValueError, match="do not fit"):
        add_rms_norm(**inputs, out=inputs["residual"][:, :8])
