"""gather_rows and embed against plain torch."""

import pytest
import torch

from quire_kernels.rows.cases import CASES
from quire_kernels.rows.op import embed, gather_rows
from quire_kernels.rows.reference import gather_rows_reference


@pytest.mark.parametrize("case", CASES, ids=str)
def test_equals_reference(case, place):
    """Rows come out bit by bit, the first and the last among them."""
    table, indices = case.inputs(place[1], place[0])
    out = torch.full((case.count, case.size), float("nan"), dtype=place[1], device=place[0])
    gather_rows(table, indices, out)
    assert torch.equal(out, gather_rows_reference(table, indices))
    embed(table, indices, out)
    assert torch.equal(out, gather_rows_reference(table, indices))


def test_what_cannot_run_is_refused(place):
    """An output of another shape is a ValueError."""
    table, indices = CASES[2].inputs(place[1], place[0])
    with pytest.raises(ValueError, match="rows"):
        gather_rows(table, indices, table[:3])
