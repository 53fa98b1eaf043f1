"""paged_attention against plain torch."""

import pytest
import torch

from quire_kernels.paged_attention.cases import CASES, AttentionCase
from quire_kernels.paged_attention.op import paged_attention
from quire_kernels.paged_attention.reference import paged_attention_reference


@pytest.mark.parametrize("case", CASES, ids=str)
def test_equals_reference(case):
    """Ragged batches of prefills, chunks and decodes attend to their own tokens and to nothing else: the pool is NaN
    wherever no token lies."""
    inputs = case.inputs()
    out = paged_attention(**inputs)
    torch.testing.assert_close(out, paged_attention_reference(**inputs), atol=2e-6, rtol=1e-5)
    assert not torch.isnan(out).any()


def test_a_decode_is_the_same_bits_as_in_its_prefill():
    """The last row of a prefill equals the same token computed alone, for every length around tiles and blocks."""
    for length in (1, 2, 4, 5, 16, 17, 127, 128, 129, 200):
        inputs = AttentionCase("whole", ((length, length),)).inputs()
        whole = paged_attention(**inputs)
        alone = paged_attention(
            **inputs
            | {"queries": inputs["queries"][-1:], "query_start_loc": torch.tensor([0, 1], dtype=torch.int32)}
        )
        assert torch.equal(whole[-1:], alone)


def test_large_scores_do_not_overflow():
    """Scores in the thousands give the softmax's limit, not NaN."""
    inputs = AttentionCase("prefill", ((20, 20),)).inputs()
    inputs["queries"] = inputs["queries"] * 1000
    out = paged_attention(**inputs)
    torch.testing.assert_close(out, paged_attention_reference(**inputs), atol=2e-3, rtol=1e-3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seq_lens": torch.tensor([70])}, "int32"),
        ({"block_tables": torch.zeros((2, 5), dtype=torch.int32)}, "block tables"),
        ({"queries": torch.zeros(70, 9, 32)}, "do not fit"),
    ],
)
def test_wrong_shapes_are_refused(change, message):
    """Shapes that contradict each other are a ValueError."""
    with pytest.raises(ValueError, match=message):
        paged_attention(**(AttentionCase("prefill", ((70, 70),)).inputs() | change))
