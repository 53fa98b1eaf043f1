"""decode_attention against plain torch in float64, with poisoned outputs; the pool is NaN wherever no token lies."""

import pytest
import torch

from quire_kernels.decode_attention.cases import CASES, DecodeCase
from quire_kernels.decode_attention.op import DecodeWorkspace, Plan, decode_attention
from quire_kernels.decode_attention.reference import decode_attention_reference

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.*")


def _run(case, device, dtype, **options):
    inputs = case.inputs(dtype, device)
    out = torch.full(
        (len(case.lengths), case.num_heads * case.head_dim), float("nan"), dtype=dtype, device=device
    )
    workspace = DecodeWorkspace(device, 8, case.num_heads, case.kv_heads, case.head_dim)
    reference_inputs = inputs | {"pool": inputs["pool"].clone()}
    decode_attention(**inputs, out=out, workspace=workspace, **options)
    assert int(workspace.counters.abs().sum()) == 0
    return out, decode_attention_reference(**reference_inputs), inputs["pool"], reference_inputs["pool"]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_equals_reference(case, place, assert_close):
    """Every length around blocks and splits, group size, head size, window, cap and sink gives the reference's result,
    and the new keys and values, and nothing else, are in the pool."""
    out, reference, pool, reference_pool = _run(case, *place)
    assert_close(out, reference)
    assert torch.equal(pool.isnan(), reference_pool.isnan())
    assert_close(pool.nan_to_num(), reference_pool.nan_to_num())


def test_half_precision(half_place, assert_close):
    """float16 agrees with float64 to its own precision."""
    out, reference, _, _ = _run(CASES[3], *half_place)
    assert_close(out, reference)


@pytest.mark.parametrize("case", [CASES[1], CASES[3], CASES[4], CASES[5], CASES[9], CASES[14]], ids=str)
def test_an_fp8_pool(case, place, assert_close):
    """Keys and values of eight bits stand for themselves times their scales; the new ones are rounded to them too."""
    device, dtype = place
    if device == "cpu" and case.rope:
        pytest.skip(
            "the interpreter rounds to fp8 wrongly: to the power of two below instead of the one above"
        )
    inputs = case.inputs(dtype, device) | {"kv_scale": (0.02, 0.5)}
    pool = inputs["pool"].float()
    pool[:, 0] /= 0.02
    pool[:, 1] /= 0.5
    inputs["pool"] = pool.clamp(-448, 448).to(torch.float8_e4m3fn)
    reference_inputs = inputs | {"pool": inputs["pool"].clone()}
    out = torch.full(
        (len(case.lengths), case.num_heads * case.head_dim), float("nan"), dtype=dtype, device=device
    )
    workspace = DecodeWorkspace(device, 8, case.num_heads, case.kv_heads, case.head_dim)
    decode_attention(**inputs, out=out, workspace=workspace)
    reference = decode_attention_reference(**reference_inputs)
    # A new key may be rounded to its other neighbour where two are nearly equally far.
    error = (out.double() - reference).norm() / reference.norm()
    assert error < (2e-3 if dtype == torch.float32 else 2e-2)
    held, expected = (tensor.float().nan_to_num() for tensor in (inputs["pool"], reference_inputs["pool"]))
    assert (held != expected).sum() <= 2e-2 * case.kv_heads * case.head_dim * len(case.lengths) * 2 + 2


@pytest.mark.parametrize("splits", [1, 4, 16])
def test_any_plan_gives_the_same(splits, place, assert_close):
    """How the context is split does not change the result."""
    case = DecodeCase("plans", (1, 100, 257), rope=False)
    out, reference, _, _ = _run(case, *place, plan=Plan(splits, 16, 32, 4, 2))
    assert_close(out, reference)


@pytest.mark.gpu
def test_replays_of_a_graph_read_lengths_from_the_device(place, assert_close):
    """A captured launch follows lengths that change between replays, with programmatic dependent launch."""
    if place[0] != "cuda":
        pytest.skip("needs a GPU")
    case = DecodeCase("graph", (400, 30, 5), rope=False, head_dim=128)
    inputs = case.inputs(place[1], "cuda")
    out = torch.empty(3, case.num_heads * 128, dtype=place[1], device="cuda")
    workspace = DecodeWorkspace("cuda", 8, case.num_heads, case.kv_heads, 128)
    decode_attention(**inputs, out=out, workspace=workspace, pdl=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(3):
            decode_attention(**inputs, out=out, workspace=workspace, pdl=True)
    for lengths in ((400, 30, 5), (17, 0, 1), (129, 16, 4)):
        inputs["seq_lens"].copy_(torch.tensor(lengths, dtype=torch.int32))
        out.fill_(float("nan"))
        graph.replay()
        assert_close(out, decode_attention_reference(**inputs))


def test_what_cannot_run_is_refused(place):
    """Shapes that contradict each other are a ValueError before anything is launched."""
    inputs = CASES[0].inputs(place[1], place[0])
    out = torch.empty(1, 8 * 64, dtype=place[1], device=place[0])
    workspace = DecodeWorkspace(place[0], 8, 8, 2, 64)
    with pytest.raises(ValueError, match="rows"):
        decode_attention(**inputs | {"qkv": inputs["qkv"][:, :64]}, out=out, workspace=workspace)
    with pytest.raises(ValueError, match="int32"):
        decode_attention(**inputs | {"seq_lens": inputs["seq_lens"].long()}, out=out, workspace=workspace)
    with pytest.raises(ValueError, match="out must be"):
        decode_attention(**inputs, out=out[:, :64], workspace=workspace)


@pytest.mark.parametrize(
    ("lengths", "shared", "members", "options"),
    [
        ((300, 290, 257, 20, 0, 400), 256, (0, 1, 2, 5), {}),
        ((300, 290, 257, 20), 240, (0, 2), {"head_norm": True, "num_heads": 9, "kv_heads": 3}),
        ((100, 81, 600), 80, (0, 1), {"sinks": True, "kv_heads": 1}),
        ((150,) * 20, 112, tuple(range(20)), {}),
    ],
    ids=["some rows", "three heads a key head", "sinks", "more rows than a tile"],
)
def test_a_shared_prefix(lengths, shared, members, options, place, assert_close):
    """Rows that begin with the same blocks get what each would alone, and so do the rows beside them."""
    device, dtype = place
    case = DecodeCase("prefix", lengths, **options)
    inputs = case.inputs(dtype, device)
    tables, rows, slots = inputs["block_tables"], inputs["table_rows"].tolist(), len(lengths) + 3
    for member in members[1:]:
        tables[rows[member], : shared // 16] = tables[rows[members[0]], : shared // 16]
    prefix = torch.full((2 + 2 * slots,), 99, dtype=torch.int32)
    prefix[:2] = torch.tensor([shared, len(members)])
    prefix[2 : 2 + len(members)] = torch.tensor(members)
    prefix[2 + slots :] = torch.tensor([shared if row in members else 0 for row in range(slots)])
    out = torch.full((len(lengths), case.num_heads * case.head_dim), float("nan"), dtype=dtype, device=device)
    workspace = DecodeWorkspace(device, len(lengths), case.num_heads, case.kv_heads, case.head_dim)
    reference = decode_attention_reference(**(inputs | {"pool": inputs["pool"].clone()}))
    decode_attention(**inputs, out=out, workspace=workspace, prefix=prefix.to(device))
    assert_close(out, reference)
    assert int(workspace.counters.abs().sum()) == 0
