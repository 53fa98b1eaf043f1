"""adjust_logits against plain torch, with poisoned outputs."""

import pytest
import torch

from quire_kernels.adjust_logits.by_slot import FORBIDDEN
from quire_kernels.adjust_logits.cases import CASES
from quire_kernels.adjust_logits.op import adjust_logits
from quire_kernels.adjust_logits.reference import adjust_logits_reference


def _run(inputs, **options):
    out = torch.full(inputs["logits"].shape, float("nan"), device=inputs["logits"].device)
    adjust_logits(**inputs, out=out, **options)
    return out


@pytest.mark.parametrize("case", CASES, ids=str)
def test_equals_reference(case, place):
    """Every kind alone and all together; rows without a slot are left alone."""
    device, dtype = place
    inputs = case.inputs(dtype, device)
    out, reference = _run(inputs), adjust_logits_reference(**inputs)
    used = inputs["slots"] >= 0
    assert out[~used].isnan().all()
    assert torch.equal(out[used] == float("-inf"), reference[used] == float("-inf"))
    torch.testing.assert_close(out[used], reference[used], rtol=1e-5, atol=1e-5)


def test_what_is_forbidden_comes_back_where_nothing_else_is_left(place):
    """Masks that leave ids 1, 2 and 3, of which all or some are forbidden."""
    inputs = CASES[-1].inputs(place[1], place[0])
    out = _run(inputs)
    left = [row.isfinite().nonzero().flatten().tolist() for row in out]
    assert [1, 2, 3] in left
    assert all(ids for ids in left[2:])


def test_tokens_are_counted_once_as_they_come(place):
    """A second call takes in what was appended since the first, and nothing twice."""
    inputs = CASES[4].inputs(place[1], place[0])
    tables = inputs["tables"]
    _run(inputs)
    for slot, token in ((0, 7), (2, CASES[4].vocab_size - 1)):
        known = int(tables.num_tokens[slot])
        tables.token_ids[slot, known] = token
        tables.num_tokens[slot] = known + 1
    out, reference = _run(inputs), adjust_logits_reference(**inputs)
    used = inputs["slots"] >= 0
    torch.testing.assert_close(out[used], reference[used], rtol=1e-5, atol=1e-5)
    assert int(inputs["by_slot"].counts[0, 7]) & 0xFFFF >= 1


def test_the_second_kernel_can_be_left_out(place):
    """Where no slot forbids anything its launch is saved."""
    inputs = CASES[2].inputs(place[1], place[0])
    assert not (inputs["by_slot"].flags & FORBIDDEN).any()
    used = inputs["slots"] >= 0
    assert torch.equal(_run(inputs, forbids=False)[used], _run(inputs)[used])


def test_what_does_not_fit_is_refused(place):
    """Masks of another vocabulary, masks without rows, and outputs that are not float32."""
    inputs = CASES[2].inputs(place[1], place[0])
    with pytest.raises(ValueError, match="together"):
        _run(inputs | {"masks": inputs["slots"][:, None]})
    with pytest.raises(ValueError, match="do not fit a vocabulary"):
        _run(inputs | {"masks": inputs["slots"][:, None], "mask_rows": inputs["slots"]})
    with pytest.raises(ValueError, match="float32"):
        adjust_logits(**inputs, out=torch.empty(5, 300, dtype=torch.float64, device=place[0]))
