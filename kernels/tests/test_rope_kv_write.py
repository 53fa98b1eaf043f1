"""rope_kv_write against plain torch."""

import pytest
import torch

from quire_kernels.rope_kv_write.cases import CASES, RopeCase
from quire_kernels.rope_kv_write.op import rope_kv_write
from quire_kernels.rope_kv_write.reference import rope_kv_write_reference


@pytest.mark.parametrize("case", CASES, ids=str)
def test_equals_reference(case):
    """Queries are rotated in place, keys and values land in their slots, and the rest of the pool stays as it was."""
    ours, expected = case.inputs(), case.inputs()
    rope_kv_write(**ours)
    rope_kv_write_reference(**expected)
    queries = case.num_heads * case.head_dim
    torch.testing.assert_close(ours["qkv"][:, :queries], expected["qkv"][:, :queries], atol=2e-6, rtol=2e-6)
    torch.testing.assert_close(ours["pool"], expected["pool"], atol=2e-6, rtol=2e-6, equal_nan=True)
    assert case.tokens == 0 or not torch.isnan(ours["pool"]).all()


def test_one_norm_alone_is_refused():
    """Head norms come for queries and keys together."""
    arguments = RopeCase(2, head_norm=True).inputs()
    with pytest.raises(ValueError, match="together"):
        rope_kv_write(**(arguments | {"k_norm": None}))
