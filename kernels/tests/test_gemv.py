"""gemv against plain torch in float64, with poisoned outputs."""

import pytest
import torch

from quire_kernels.gemv.cases import CASES, ProductCase
from quire_kernels.gemv.op import gemv
from quire_kernels.gemv.reference import gemv_reference


@pytest.mark.parametrize("case", CASES, ids=str)
def test_equals_reference(case, place, assert_close):
    """Norm, gate, bias and residual, for sizes that fill chunks and that do not."""
    device, dtype = place
    inputs = case.inputs(dtype, device)
    out = torch.full((1, case.num_outputs), float("nan"), dtype=dtype, device=device)
    gemv(**inputs, out=out)
    assert_close(out, gemv_reference(**inputs))


def test_the_residual_may_be_the_output(place, assert_close):
    """A projection adds itself to the residual stream in place."""
    device, dtype = place
    inputs = CASES[5].inputs(dtype, device)
    reference = gemv_reference(**inputs)
    gemv(**inputs, out=inputs["residual"])
    assert_close(inputs["residual"], reference)


def test_output_may_be_wider(half_place, assert_close):
    """Logits in float32 from half-precision weights."""
    device, dtype = half_place
    inputs = CASES[4].inputs(dtype, device)
    out = torch.full((1, 48), float("nan"), device=device)
    gemv(**inputs, out=out)
    assert_close(out, gemv_reference(**inputs))


@pytest.mark.parametrize("gated", [False, True])
def test_rows_of_the_weight_are_scaled(gated, place, assert_close):
    """A weight of eight-bit floats stands for itself times its row's scale; the interpreter knows no such floats."""
    device, dtype = place
    case = ProductCase(48, 2048, gated=gated, norm=True)
    inputs = case.inputs(dtype, device)
    kind = torch.float8_e4m3fn if device == "cuda" else dtype
    inputs["scale"] = inputs["weight"].float().abs().amax(1) / 448
    inputs["weight"] = (inputs["weight"].float() / inputs["scale"][:, None]).to(kind)
    out = torch.full((1, 48), float("nan"), dtype=dtype, device=device)
    gemv(**inputs, out=out)
    assert_close(out, gemv_reference(**inputs))
    with pytest.raises(ValueError, match="scale"):
        gemv(**inputs | {"scale": inputs["scale"][:5]}, out=out)


def test_what_cannot_run_is_refused(place):
    """More rows than one, or sizes that do not fit, are a ValueError."""
    inputs = CASES[0].inputs(place[1], place[0])
    out = torch.empty(1, 1, dtype=place[1], device=place[0])
    with pytest.raises(ValueError, match="one row"):
        gemv(**inputs | {"x": inputs["x"].expand(2, -1)}, out=out)
    with pytest.raises(ValueError, match="outputs"):
        gemv(**inputs | {"gated": True}, out=out)
