"""skinny_linear against plain torch in float64, with poisoned outputs."""

import pytest
import torch

from quire_kernels.gemv.cases import ProductCase
from quire_kernels.skinny_linear.cases import CASES
from quire_kernels.skinny_linear.op import Plan, SkinnyWorkspace, skinny_linear
from quire_kernels.skinny_linear.reference import skinny_linear_reference


def _inputs(case, device, dtype):
    inputs = case.inputs(dtype, device)
    return {name: inputs[name] for name in ("x", "weight", "residual", "bias", "gated")}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_equals_reference(case, place, assert_close):
    """Rows, outputs and inputs that fill tiles and that do not, with gate, bias and residual."""
    device, dtype = place
    inputs = _inputs(case, device, dtype)
    out = torch.full((case.rows, case.num_outputs), float("nan"), dtype=dtype, device=device)
    workspace = SkinnyWorkspace(device, 1 << 20, 64)
    skinny_linear(**inputs, out=out, workspace=workspace)
    assert_close(out, skinny_linear_reference(**inputs))
    assert int(workspace.counters.abs().sum()) == 0


@pytest.mark.parametrize("splits", [1, 3, 8])
def test_any_plan_gives_the_same(splits, place, assert_close):
    """How the inputs are split does not change the result; a split may be left without inputs."""
    device, dtype = place
    case = ProductCase(50, 640, rows=5, residual=True)
    inputs = _inputs(case, device, dtype)
    reference = skinny_linear_reference(**inputs)
    skinny_linear(**inputs, out=inputs["residual"], workspace=SkinnyWorkspace(device, 1 << 20, 64),
                  plan=Plan(32, 128, splits, 4, 2))  # fmt: skip
    assert_close(inputs["residual"], reference)


@pytest.mark.parametrize("case", [CASES[1], CASES[3], CASES[5]], ids=str)
def test_rows_of_the_weight_are_scaled(case, place, assert_close):
    """A weight of eight-bit floats stands for itself times its row's scale; the interpreter knows no such floats."""
    device, dtype = place
    inputs = _inputs(case, device, dtype)
    kind = torch.float8_e4m3fn if device == "cuda" else dtype
    inputs["scale"] = inputs["weight"].float().abs().amax(1) / 448
    inputs["weight"] = (inputs["weight"].float() / inputs["scale"][:, None]).to(kind)
    out = torch.full((case.rows, case.num_outputs), float("nan"), dtype=dtype, device=device)
    workspace = SkinnyWorkspace(device, 1 << 20, 64)
    skinny_linear(**inputs, out=out, workspace=workspace)
    assert_close(out, skinny_linear_reference(**inputs))
    with pytest.raises(ValueError, match="scale"):
        skinny_linear(**inputs | {"scale": inputs["scale"][:5]}, out=out, workspace=workspace)


def test_half_precision_outputs_are_saturated(half_place):
    """What is beyond float16 becomes its largest number, not infinity."""
    device, dtype = half_place
    x, weight = (torch.full((2, 64), 200.0, dtype=dtype, device=device) for _ in range(2))
    out = torch.empty(2, 2, dtype=dtype, device=device)
    skinny_linear(x, weight, out, SkinnyWorkspace(device, 1 << 20, 64))
    assert (out == 65504.0).all()


def test_what_cannot_run_is_refused(place):
    """Too many rows, and a workspace that is too small, are a ValueError."""
    device, dtype = place
    case = ProductCase(64, 4096, rows=64)
    inputs = _inputs(case, device, dtype)
    out = torch.empty(64, 64, dtype=dtype, device=device)
    with pytest.raises(ValueError, match="workspace"):
        skinny_linear(**inputs, out=out, workspace=SkinnyWorkspace(device, 8, 1), plan=Plan(64, 128, 4, 4, 2))
    with pytest.raises(ValueError, match="rows"):
        skinny_linear(**inputs | {"x": out[:0]}, out=out[:0], workspace=SkinnyWorkspace(device, 8, 1))
