"""prefill_attention against plain torch in float64, with poisoned outputs; the pool is NaN wherever no token lies."""

import pytest
import torch

from quire_kernels.prefill_attention.cases import CASES, PrefillCase
from quire_kernels.prefill_attention.op import Plan, prefill_attention, tokens_of_tile
from quire_kernels.prefill_attention.reference import prefill_attention_reference

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.*")


def _run(case, device, dtype, **options):
    inputs = case.inputs(dtype, device)
    out = torch.full(
        (len(inputs["qkv"]), case.num_heads * case.head_dim), float("nan"), dtype=dtype, device=device
    )
    prefill_attention(**inputs, out=out, **options)
    return out, prefill_attention_reference(**inputs)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_equals_reference(case, place, assert_close):
    """Ragged runs with and without cached prefixes attend to their own tokens and nothing else; rows of no sequence
    are left alone."""
    out, reference = _run(case, *place)
    assert_close(out[case.first_row :], reference[case.first_row :])
    assert out[: case.first_row].isnan().all()


@pytest.mark.parametrize(
    "case", [CASES[1], CASES[2], CASES[3], CASES[4], CASES[6], CASES[9], CASES[12]], ids=str
)
def test_own_keys_give_the_same(case, place, assert_close):
    """New keys and values read from the projections, cached ones from blocks."""
    out, reference = _run(case, *place, has_own_keys=True)
    assert_close(out[case.first_row :], reference[case.first_row :])
    assert out[: case.first_row].isnan().all()


def test_listed_tiles_are_computed_and_no_others(place, assert_close):
    """A list longer than what it holds, for one of two sequences, leaves the other's rows alone."""
    case = CASES[4]
    device, dtype = place
    tokens = tokens_of_tile(case.num_heads, case.kv_heads, case.head_dim, dtype.itemsize)
    entries = list(range(-(-case.sequences[0][0] // tokens)))
    tiles = torch.tensor([len(entries), *entries, *[99 << 16] * 3], dtype=torch.int32, device=device)
    out, reference = _run(case, device, dtype, has_own_keys=True, tiles=tiles)
    first, last = case.first_row, case.first_row + case.sequences[0][0]
    assert_close(out[first:last], reference[first:last])
    assert out[:first].isnan().all()
    assert out[last:].isnan().all()


def test_half_precision(half_place, assert_close):
    """float16 agrees with float64 to its own precision."""
    out, reference = _run(CASES[3], *half_place)
    assert_close(out, reference)


@pytest.mark.parametrize("case", [CASES[1], CASES[3]], ids=str)
def test_an_fp8_pool(case, place, assert_close):
    """Keys and values of eight bits stand for themselves times their scales."""
    device, dtype = place
    inputs = case.inputs(dtype, device) | {"kv_scale": (0.02, 0.5)}
    pool = inputs["pool"].float()
    pool[:, 0] /= 0.02
    pool[:, 1] /= 0.5
    inputs["pool"] = pool.clamp(-448, 448).to(torch.float8_e4m3fn)
    out = torch.full(
        (len(inputs["qkv"]), case.num_heads * case.head_dim), float("nan"), dtype=dtype, device=device
    )
    prefill_attention(**inputs, out=out)
    assert_close(out[case.first_row :], prefill_attention_reference(**inputs)[case.first_row :])


@pytest.mark.parametrize("plan", [Plan(64, 32, 4, 2), Plan(32, 16, 2, 1)])
def test_any_plan_gives_the_same(plan, place, assert_close):
    """How the work is tiled does not change the result."""
    out, reference = _run(PrefillCase("plans", ((50, 75), (1, 1))), *place, plan=plan)
    assert_close(out, reference)


def test_what_cannot_run_is_refused(place):
    """Shapes that contradict each other are a ValueError before anything is launched."""
    inputs = CASES[1].inputs(place[1], place[0])
    out = torch.empty(1, 8 * 64, dtype=place[1], device=place[0])
    with pytest.raises(ValueError, match="starts"):
        prefill_attention(**inputs | {"query_start_loc": inputs["query_start_loc"][:1]}, out=out)
    with pytest.raises(ValueError, match="can't run"):
        prefill_attention(**inputs | {"num_heads": 7}, out=out)
