"""linear and gated_linear against plain torch."""

import numpy as np
import pytest
import torch

from quire_kernels.cpu.amx import has_amx
from quire_kernels.cpu.memory import zeros
from quire_kernels.cpu.target import TARGET
from quire_kernels.cpu.team import Program
from quire_kernels.linear import cpu, steps
from quire_kernels.linear.cases import CASES, random_weight
from quire_kernels.linear.op import gated_linear, linear
from quire_kernels.linear.packing import pack
from quire_kernels.linear.reference import gated_linear_reference, linear_reference
from quire_kernels.linear.rows import WeightRows


@pytest.mark.parametrize("case", CASES, ids=str)
def test_equals_reference(case):
    """Every kind of weight gives what its float32 expansion gives."""
    x, weight = case.x(), case.weight()
    bias = torch.randn(case.num_outputs, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(linear(x, weight), linear_reference(x, weight), atol=2e-5, rtol=1e-5)
    torch.testing.assert_close(
        linear(x, weight, bias), linear_reference(x, weight, bias), atol=2e-5, rtol=1e-5
    )


@pytest.mark.skipif(not has_amx(), reason="the processor has no matrix tiles")
@pytest.mark.parametrize("kind", ["q8_0", "q4_1"])
def test_matrix_tiles_are_as_exact_as_vectors(kind):
    """Both kernels agree, and in all matrix tiles are no further from the float64 product than float32 vectors are,
    also where a row's values differ by five orders of magnitude."""
    errors = {True: 0.0, False: 0.0}
    for case in (case for case in CASES if case.kind == kind and case.rows > 0):
        weight = case.weight()
        expanded = torch.from_numpy(weight.to_float32()).double()
        for x in (case.x(), case.x() * torch.logspace(-3, 2, case.num_inputs)):
            exact, size = x.double() @ expanded.T, x.abs().double() @ expanded.abs().T
            for use_amx in errors:
                difference = (linear(x, weight, use_amx=use_amx).double() - exact) / size
                assert difference.abs().max() < 1e-6
                errors[use_amx] += float((difference**2).mean())
    assert errors[True] <= errors[False]


def test_matrix_tiles_where_there_are_none(monkeypatch):
    """Asking for matrix tiles that the process may not use is a ValueError; not asking gives vectors."""
    monkeypatch.setattr(steps, "has_amx", lambda: False)
    case = CASES[-1]
    with pytest.raises(ValueError, match="matrix tiles"):
        linear(case.x(), case.weight(), use_amx=True)
    assert torch.equal(linear(case.x(), case.weight()), linear(case.x(), case.weight(), use_amx=False))


@pytest.mark.parametrize("rows", [1, 9, 40])
@pytest.mark.parametrize("outputs", [64, 37])
def test_gated_equals_reference(rows, outputs):
    """The gated product equals silu(gate) * up, also where the last tile is not full."""
    x = torch.randn(rows, 64, generator=torch.Generator().manual_seed(rows))
    gate, up = random_weight("q4_1", outputs, 64, 1), random_weight("q4_1", outputs, 64, 2)
    expected = gated_linear_reference(x, gate, up)
    torch.testing.assert_close(gated_linear(x, gate, up), expected, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", ["f32", "bf16", "q8_0", "q4_1"])
def test_row_is_the_same_bits_in_any_batch(kind):
    """A row's result does not depend on how many rows are computed with it."""
    weight = random_weight(kind, 96, 128)
    x = torch.randn(61, 128, generator=torch.Generator().manual_seed(0))
    together = linear(x, weight)
    for rows in (1, 2, 5, 13, 14, 15, 16, 17, 33):
        assert torch.equal(linear(x[:rows], weight), together[:rows])


def test_add_touches_only_its_rows():
    """The accumulating epilogue adds to the first rows and leaves the others as they were."""
    weight = random_weight("f32", TARGET.tile_columns, 64)
    x = zeros((4 + TARGET.max_tile_rows, 64), np.float32)
    x[:] = np.random.default_rng(0).standard_normal(x.shape)
    out = zeros((4 + TARGET.max_tile_rows, TARGET.tile_columns), np.float32)
    out[:] = 7.0
    step = cpu.bind(pack([weight]), x, out, np.array([3]), cpu.scratch(2, 64), epilogue=cpu.ADD)
    Program([step], 2).run()
    np.testing.assert_allclose(out[:3], x[:3] @ weight.data.T + 7.0, atol=1e-5)
    assert (out[3:] == 7.0).all()


def test_fused_parts_of_different_kinds():
    """Matrices of different kinds are packed one above the other."""
    parts = [random_weight("q8_0", 40, 64, 1), random_weight("q4_1", 24, 64, 2)]
    whole = WeightRows("f32", 64, np.concatenate([part.to_float32() for part in parts]))
    packed = pack(parts)
    assert (packed.kind, packed.num_outputs) == ("f32", 64)
    np.testing.assert_array_equal(packed.data, pack([whole]).data)


@pytest.mark.parametrize(
    ("kind", "inputs", "data"),
    [
        ("q5_0", 32, np.zeros((1, 22), np.uint8)),
        ("q8_0", 33, np.zeros((1, 34), np.uint8)),
        ("q4_1", 64, np.zeros((1, 20), np.uint8)),
        ("f32", 8, np.zeros((1, 8), np.float64)),
    ],
)
def test_malformed_rows_are_refused(kind, inputs, data):
    """Rows whose bytes do not fit their kind are a ValueError, not a wild read."""
    with pytest.raises(ValueError, match=kind):
        WeightRows(kind, inputs, data)


def test_quantised_rows_equal_the_gguf_package():
    """The expansion to float32, which every kernel is compared with, is the format's own."""
    import gguf

    for kind, code in (("q8_0", gguf.GGMLQuantizationType.Q8_0), ("q4_1", gguf.GGMLQuantizationType.Q4_1)):
        weight = random_weight(kind, 3, 64)
        np.testing.assert_array_equal(weight.to_float32(), gguf.quants.dequantize(weight.data, code))
