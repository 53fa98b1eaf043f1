"""Any typed request at all: events to the end, or INVALID_ARGUMENT; never another status, never a hang."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
from gateway_fakes import FakeScheduler
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from quire.inference.v1 import chat_pb2, generate_pb2
from quire.sampling.v1 import sampling_pb2

_UINT = st.one_of(st.integers(0, 6), st.sampled_from([200, 257, 258, 2**31, 2**32 - 1]))
_FLOAT = st.one_of(
    st.floats(0, 2, width=32),
    st.floats(width=32),
    st.sampled_from([0.0, 1.0, -1.0, float("nan"), float("inf")]),
)
_IDS = st.lists(_UINT, max_size=4)


def _some(**fields: Any) -> Any:
    """Some of these fields, few at a time: one that is out of range ends the matter."""
    one = st.one_of(*(value.map(lambda found, name=name: {name: found}) for name, value in fields.items()))
    return st.lists(one, max_size=4).map(
        lambda parts: {name: v for part in parts for name, v in part.items()}
    )


_SAMPLING = _some(
    temperature=_FLOAT, top_p=_FLOAT, top_k=_UINT, min_p=_FLOAT, presence_penalty=_FLOAT, frequency_penalty=_FLOAT,
    repetition_penalty=_FLOAT, seed=st.integers(0, 2**64 - 1), num_logprobs=_UINT, num_prompt_logprobs=_UINT,
    min_tokens=_UINT, max_tokens=_UINT, ignore_eos=st.booleans(), stop_token_ids=_IDS, allowed_token_ids=_IDS,
    logprob_token_ids=_IDS, logit_bias=st.dictionaries(_UINT, _FLOAT, max_size=2),
    bad_token_sequences=st.lists(_IDS.map(lambda ids: sampling_pb2.TokenSequence(token_ids=ids)), max_size=2),
).map(lambda fields: sampling_pb2.SamplingParams(**fields))  # fmt: skip
_INPUT = st.one_of(
    st.just({}),
    st.text(max_size=12).map(lambda text: {"text": text}),
    _IDS.map(lambda ids: {"token_ids": generate_pb2.TokenIds(ids=ids)}),
    st.lists(st.sampled_from(["user", "x", ""]), max_size=2).map(
        lambda roles: {"chat": chat_pb2.Chat(messages=[chat_pb2.ChatMessage(role=role) for role in roles])}
    ),
)
_OPTIONS = _some(
    stop=st.lists(st.text(max_size=3), max_size=2), include_stop_text=st.booleans(), n=_UINT,
    skip_special_tokens=st.booleans(), priority=st.integers(-(2**31), 2**31 - 1), cache_salt=st.text(max_size=3),
    detokenize=st.booleans(), bad_words=st.lists(st.text(max_size=3), max_size=2), session_id=st.text(max_size=3),
    truncation=_some(max_tokens=_UINT, side=st.integers(0, 3)).map(lambda f: generate_pb2.Truncation(**f)),
    add_special_tokens=st.booleans(), skip_reading_prefix_cache=st.booleans(), stream_interval=_UINT,
    beam_search=_some(length_penalty=_FLOAT).map(lambda f: generate_pb2.BeamSearch(**f)),
    return_prompt_token_ids=st.booleans(), return_prompt_text=st.booleans(),
)  # fmt: skip


@pytest.fixture
async def small(make_suite: Any) -> Any:
    """A gateway whose engine is quick and ends soon."""
    return await make_suite([FakeScheduler(max_model_len=40, step_s=0.0, tokens_per_step=4)])


@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(source=_INPUT, sampling=_SAMPLING, options=_OPTIONS)
async def test_any_generate(
    small: Any, source: dict[str, Any], sampling: sampling_pb2.SamplingParams, options: dict[str, Any]
) -> None:
    """Started first, completed last with every sequence's end, or a refusal with a message; nothing is left behind."""
    request = generate_pb2.GenerateRequest(sampling=sampling, **source, **options)
    call = small.client.inference.Generate(request, timeout=15)
    try:
        events = [event async for event in call]
    except grpc.aio.AioRpcError as refused:
        assert refused.code() is grpc.StatusCode.INVALID_ARGUMENT, refused
        assert refused.details()
    else:
        kinds = [event.WhichOneof("event") for event in events]
        assert (kinds[0], kinds[-1]) == ("started", "completed")
        assert kinds.count("sequence_finished") == (request.n if request.HasField("n") else 1)
        assert kinds.count("prompt_logprobs") == sampling.HasField("num_prompt_logprobs")
    assert small.gateway.admission.num_in_flight == 0
