"""The embedding lookup against plain torch."""

import pytest
import torch

from quire_kernels.embedding.cases import CASES
from quire_kernels.embedding.op import embedding
from quire_kernels.embedding.reference import embedding_reference
from quire_kernels.linear.cases import random_weight


@pytest.mark.parametrize("case", CASES, ids=str)
def test_equals_reference(case):
    """The rows of a packed table are those of its float32 expansion."""
    table, token_ids = random_weight(case.kind, case.vocab_size, case.size), case.token_ids()
    torch.testing.assert_close(
        embedding(table, token_ids), embedding_reference(table, token_ids), atol=1e-6, rtol=1e-6
    )


@pytest.mark.parametrize("token", [-1, 100])
def test_token_outside_the_vocabulary_is_refused(token):
    """An id outside the table is a ValueError, not a wild read."""
    with pytest.raises(ValueError, match=r"0\.\.99"):
        embedding(random_weight("f32", 100, 8), torch.tensor([token], dtype=torch.int32))
