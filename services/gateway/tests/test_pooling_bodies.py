"""Any JSON body through each endpoint of vectors: read into domain data, or refused as the client's fault."""

from __future__ import annotations

import itertools
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire_gateway.models import ModelTask, ServedModel
from quire_gateway.openai.pooling_requests import (
    ClassifyRequest,
    EmbeddingRequest,
    PoolingRequest,
    RerankRequest,
    ScoreRequest,
    parse,
)
from quire_gateway.pooling.call import PoolingCall, validate_call
from quire_gateway.pooling.params import PoolingTask
from quire_gateway.pooling.scoring import ScoreCall, ranked
from quire_gateway.sampling import Sampling
from quire_servicekit.errors import InvalidRequest, Unsupported

MODEL = ServedModel(
    id="m", max_model_len=8, vocab_size=100, eos_token_ids=(), default_sampling=Sampling(), created_unix_s=0,
    fingerprint="f", tasks=frozenset(ModelTask), embedding_size=4,
)  # fmt: skip
NAMES = (
    "model", "input", "messages", "dimensions", "encoding_format", "truncate_prompt_tokens", "normalize",
    "use_activation", "priority", "task", "text_1", "text_2", "queries", "documents", "query", "top_n",
    "return_documents", "max_tokens_per_doc", "user", "cache_salt", "truncation_side", "images", "nonsense",
)  # fmt: skip
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**40), 2**40)
    | st.floats(allow_nan=False)
    | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["role", "text", "content"]), inner)
    ),
    max_leaves=8,
)
LIKELY = st.sampled_from(
    ["a", ["a", "b"], [1, 2], [[1], [2, 3]], [], [""], [[]], "float", "embed", 2, -1, True,
     [{"role": "user", "content": "hi"}], [{"text": "d"}]],
)  # fmt: skip
BODIES = st.dictionaries(st.sampled_from(NAMES), LIKELY | JSON, max_size=6) | JSON


def _calls(request: Any) -> PoolingCall | ScoreCall:
    if isinstance(request, PoolingRequest):
        wants, task = request.task_of(MODEL)
        return request.call(wants, task, request.dimensions)
    if isinstance(request, EmbeddingRequest):
        return request.call(ModelTask.EMBED, PoolingTask.EMBED, request.dimensions)
    if isinstance(request, ClassifyRequest):
        return request.call(ModelTask.CLASSIFY, PoolingTask.CLASSIFY)
    call: ScoreCall = request.call()
    return call


@pytest.mark.parametrize(
    "kind", [EmbeddingRequest, ClassifyRequest, PoolingRequest, ScoreRequest, RerankRequest]
)
@given(body=BODIES)
def test_any_body_is_read_or_refused(kind: Any, body: Any) -> None:
    """Whatever the JSON, nothing but a refusal that names a parameter comes out of reading and checking it."""
    try:
        call = _calls(parse(orjson.dumps(body), kind))
        if isinstance(call, PoolingCall):
            validate_call(call, MODEL)
            assert 1 <= len(call.inputs) <= 2048
            assert all(call.name_of(index) for index in range(len(call.inputs)))
    except InvalidRequest as error:
        assert error.field
    except Unsupported as error:
        assert error.parameter


@given(values=st.lists(st.floats(-1, 1), min_size=1, max_size=20), top_n=st.none() | st.integers(1, 30))
def test_ranking_is_a_stable_order(values: list[float], top_n: int | None) -> None:
    """Every index at most once, scores never rise, equal ones keep their order."""
    order = ranked(values, top_n)
    assert len(order) == min(len(values), top_n or len(values))
    for one, other in itertools.pairwise(order):
        assert (-values[one], one) < (-values[other], other)
