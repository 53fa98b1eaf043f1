"""fp8_rows against plain torch in float64, with poisoned outputs. Triton's interpreter knows no eight-bit floats, so
there the rows stay in the type of the activations, and what is tested is everything but the rounding."""

import pytest
import torch

from quire_kernels.fp8_rows.cases import CASES, RowsCase
from quire_kernels.fp8_rows.op import add_rms_norm_fp8, quantize_rows, silu_mul_fp8
from quire_kernels.fp8_rows.reference import (
    add_rms_norm_fp8_reference,
    quantize_rows_reference,
    silu_mul_fp8_reference,
)

# Rounding may go to the other neighbour where the two are equally far: the share of such differences.
_FP8_TOLERANCE = 2e-3


def _outputs(case, device, dtype):
    kind = torch.float8_e4m3fn if device == "cuda" else dtype
    out = torch.full((case.rows, case.size), float("nan"), device=device).to(kind)
    return out, torch.full((case.rows,), float("nan"), device=device)


def _check(out, scale, reference, assert_close):
    expected, scales = reference
    assert_close(scale, scales)
    if out.numel() and out.dtype == torch.float8_e4m3fn:
        error = (out.double() - expected.double()).norm() / expected.double().norm()
        assert error <= _FP8_TOLERANCE
    else:
        assert_close(out, expected)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_rows_are_divided_by_their_scale(case, place, assert_close):
    """The largest of a row becomes 448; a static scale holds for every row and cuts off what is beyond."""
    device, dtype = place
    x, static = case.draw(dtype, device), case.static_scale(device)
    out, scale = _outputs(case, device, dtype)
    quantize_rows(x, out, scale, static_scale=static)
    _check(out, scale, quantize_rows_reference(x, out.dtype, static_scale=static), assert_close)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_normed_rows(case, place, assert_close):
    """The residual grows by x where there is one, and its norm comes out in fp8."""
    device, dtype = place
    residual, static = case.draw(dtype, device), case.static_scale(device)
    x = case.draw(dtype, device).flip(0) if case.add else None
    weight = torch.linspace(0.5, 1.5, case.size, device=device).to(dtype)
    out, scale = _outputs(case, device, dtype)
    expected_residual = residual.clone()
    reference = add_rms_norm_fp8_reference(x, expected_residual, weight, 1e-5, out.dtype, static_scale=static)
    add_rms_norm_fp8(x, residual, weight, 1e-5, out, scale, static_scale=static)
    assert_close(residual, expected_residual)
    _check(out, scale, reference, assert_close)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_gated_rows(case, place, assert_close):
    """silu(gate) * up, in fp8."""
    device, dtype = place
    gate_up, static = case.draw(dtype, device, width=2) * 0.1, case.static_scale(device)
    out, scale = _outputs(case, device, dtype)
    silu_mul_fp8(gate_up, out, scale, static_scale=static)
    _check(out, scale, silu_mul_fp8_reference(gate_up, out.dtype, static_scale=static), assert_close)


def test_a_row_of_zeros_stays_zero(place):
    """A row without a largest value divides by no zero."""
    device, dtype = place
    case = RowsCase(2, 64)
    out, scale = _outputs(case, device, dtype)
    quantize_rows(torch.zeros(2, 64, dtype=dtype, device=device), out, scale)
    assert not out.float().any()
    assert torch.isfinite(scale).all()


def test_what_does_not_fit_is_refused(place):
    """Sizes and types of scales are checked."""
    device, dtype = place
    x = torch.zeros(2, 64, dtype=dtype, device=device)
    scale = torch.zeros(2, device=device)
    with pytest.raises(ValueError, match="must fit"):
        quantize_rows(x, x[:, :32], scale)
    with pytest.raises(ValueError, match="float32"):
        quantize_rows(x, x.clone(), scale.double())
    with pytest.raises(ValueError, match="even"):
        silu_mul_fp8(x[:, :63], x, scale)
    with pytest.raises(ValueError, match="weight"):
        add_rms_norm_fp8(None, x, x[0, :5], 1e-5, x.clone(), scale)
