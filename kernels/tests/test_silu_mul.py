"""silu_mul against plain torch in float64."""

import pytest
import torch

from quire_kernels.silu_mul.cases import CASES
from quire_kernels.silu_mul.op import silu_mul
from quire_kernels.silu_mul.reference import silu_mul_reference


@pytest.mark.parametrize("case", CASES, ids=str)
def test_equals_reference(case, place, assert_close):
    """Widths that fill chunks and that do not."""
    gate_up = case.gate_up(place[1], place[0])
    out = torch.full((case.rows, case.width), float("nan"), dtype=place[1], device=place[0])
    silu_mul(gate_up, out)
    assert_close(out, silu_mul_reference(gate_up))


def test_what_cannot_run_is_refused(place):
    """An output that is not half as wide is a ValueError."""
    gate_up = CASES[1].gate_up(place[1], place[0])
    with pytest.raises(ValueError, match="twice"):
        silu_mul(gate_up, gate_up)
