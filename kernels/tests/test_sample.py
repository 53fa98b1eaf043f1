"""sample_tokens against plain numpy: the same tokens, drawn with the same random bits as on the CPU."""

import pytest
import torch

from quire_kernels.sample import op
from quire_kernels.sample.cases import CASES, SampleCase
from quire_kernels.sample.op import SampleWorkspace, sample_tokens
from quire_kernels.sample.reference import sample_reference

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.*")


def _run(case, logits, slots, device, **options):
    parameters, tables = case.parameters(12, device), case.tables(12, device)
    out = torch.full((len(slots),), -7, dtype=torch.int32, device=device)
    workspace = SampleWorkspace(device, 12, case.vocab_size)
    before = tables.num_tokens.tolist()
    sample_tokens(logits, slots, parameters, tables, out, workspace, **options)
    assert int(workspace.counters.abs().sum()) == 0
    return out.tolist(), parameters, tables, before


def _reference(case, logits, slots, parameters, positions):
    return [
        sample_reference(
            logits[row], temperature=case.temperature, min_p=case.min_p, top_k=case.top_k, top_p=case.top_p,
            seed=int(parameters.seed[slot]), sequence_index=int(parameters.sequence_index[slot]),
            position=positions[slot],
        )
        for row, slot in enumerate(slots)
    ]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_equals_reference(case, place):
    """Greedy, hot and filtered rows get the reference's token, and it becomes the last of the slot's history."""
    device, dtype = place
    logits = case.logits(dtype, device)
    slots = torch.arange(11, 11 - case.rows, -1, dtype=torch.int32, device=device)
    out, parameters, tables, before = _run(case, logits, slots, device)
    assert out == _reference(case, logits, slots.tolist(), parameters, before)
    for token, slot in zip(out, slots.tolist(), strict=True):
        assert int(tables.num_tokens[slot]) == before[slot] + 1
        assert int(tables.token_ids[slot, before[slot]]) == token


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.top_k or case.top_p < 1 or case.min_p], ids=str
)
def test_thresholds_of_many_rows(case, place, monkeypatch):
    """Many rows are searched by one program each, and get the same tokens."""
    monkeypatch.setattr(op, "_MOST_ROWS_BY_CHUNKS", 0)
    device, dtype = place
    logits = case.logits(dtype, device)
    slots = torch.arange(case.rows, dtype=torch.int32, device=device)
    out, parameters, _, before = _run(case, logits, slots, device)
    assert out == _reference(case, logits, slots.tolist(), parameters, before)


def test_unfiltered_is_the_same_without_thresholds(place):
    """Where no row has filters the pass that looks for them can be left out."""
    device, dtype = place
    case = SampleCase("plain", 6, 5000)
    logits = case.logits(dtype, device)
    slots = torch.arange(6, dtype=torch.int32, device=device)
    assert _run(case, logits, slots, device)[0] == _run(case, logits, slots, device, filtered=False)[0]


def test_pads_and_unfinished_prompts_draw_nothing(place):
    """A row that pads, and one whose slot has uncomputed tokens, get -1 and leave their slots alone."""
    device, dtype = place
    case = SampleCase("pads", 3, 5000)
    parameters, tables = case.parameters(4, device), case.tables(4, device)
    tables.num_computed[2] = 3
    out = torch.zeros(3, dtype=torch.int32, device=device)
    slots = torch.tensor([-1, 2, 1], dtype=torch.int32, device=device)
    before = tables.num_tokens.clone()
    sample_tokens(
        case.logits(dtype, device), slots, parameters, tables, out, SampleWorkspace(device, 4, 5000)
    )
    assert out.tolist()[:2] == [-1, -1]
    assert out.tolist()[2] >= 0
    assert (tables.num_tokens - before).tolist() == [0, 1, 0, 0]
    assert int(tables.token_ids.count_nonzero()) <= 1


def test_what_cannot_run_is_refused(place):
    """More rows than the workspace holds are a ValueError."""
    device, dtype = place
    case = SampleCase("many", 4, 10)
    slots = torch.arange(4, dtype=torch.int32, device=device)
    with pytest.raises(ValueError, match="workspace"):
        sample_tokens(case.logits(dtype, device), slots, case.parameters(4, device), case.tables(4, device),
                      torch.empty_like(slots), SampleWorkspace(device, 2, 10))  # fmt: skip
