"""prepare_step and place_sequences against plain torch."""

import pytest
import torch

from quire_kernels.step_inputs.cases import CASES, PlaceCase
from quire_kernels.step_inputs.op import place_sequences, prepare_step
from quire_kernels.step_inputs.reference import place_sequences_reference, prepare_step_reference

_INPUTS = (
    "token_ids", "positions", "slot_mapping", "query_start_loc", "seq_lens", "table_rows", "sample_rows",
    "decode_lens",
)  # fmt: skip
_TABLES = ("token_ids", "num_tokens", "num_computed", "block_tables")


@pytest.fixture
def device(place):
    """The device kernels run on; there are only integers here, so one type is enough."""
    if place[1] != torch.float32:
        pytest.skip("integers only")
    return place[0]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_prepare_equals_reference(case, device):
    """Decodes, chunks, pads and new blocks give the reference's inputs and tables."""
    packed, tables, inputs = case.build(device)
    expected_tables, expected_inputs = case.build(device)[1:]
    options = {"num_rows": case.num_rows, "max_query_len": case.max_query_len, "block_size": case.block_size}
    prepare_step(packed, tables, inputs, **options)
    prepare_step_reference(packed, expected_tables, expected_inputs, **options)
    for name in _INPUTS:
        assert torch.equal(getattr(inputs, name), getattr(expected_inputs, name)), name
    for name in _TABLES:
        assert torch.equal(getattr(tables, name), getattr(expected_tables, name)), name


def test_place_equals_reference(device):
    """Sequences longer than a tile, and of one token, land in their slots, and nowhere else."""
    case = PlaceCase(((3, 2500, 100, 157), (0, 1, 0, 1)))
    packed, tables = case.build(device)
    expected = case.build(device)[1]
    place_sequences(packed, tables, num_sequences=2, max_tokens=2500, max_blocks=157)
    place_sequences_reference(packed, expected, num_sequences=2)
    for name in _TABLES:
        assert torch.equal(getattr(tables, name), getattr(expected, name)), name


def test_what_cannot_run_is_refused(device):
    """A buffer without room for its columns, or more rows than inputs, are a ValueError."""
    packed, tables, inputs = CASES[0].build(device)
    with pytest.raises(ValueError, match="packed"):
        prepare_step(packed[:9], tables, inputs, num_rows=1, max_query_len=1, block_size=16)
    with pytest.raises(ValueError, match="num_rows"):
        prepare_step(packed, tables, inputs, num_rows=100, max_query_len=1, block_size=16)
