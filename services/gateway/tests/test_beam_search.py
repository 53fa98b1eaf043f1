"""Beam search: the algorithm against every continuation there is, and the whole way through the API."""

from __future__ import annotations

import asyncio
import itertools
import math
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from gateway_fakes import EOS, FakeScheduler
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.inference.v1 import generate_pb2
from quire.sampling.v1 import sampling_pb2
from quire_gateway.beam_search import Beam, search
from quire_servicekit.errors import QueueFull

#: Token 0 ends a continuation.
_END = 0

Model = Callable[[Sequence[int]], list[tuple[int, float]]]


def _model(seed: int, vocab_size: int) -> Model:
    """Next tokens with log-probabilities that depend on all tokens before; descending."""

    def next_tokens(before: Sequence[int]) -> list[tuple[int, float]]:
        rng = random.Random(f"{seed}:{list(before)}")
        weights = [rng.random() ** 3 + 1e-6 for _ in range(vocab_size)]
        found = [(token, math.log(weight / sum(weights))) for token, weight in enumerate(weights)]
        return sorted(found, key=lambda entry: -entry[1])

    return next_tokens


def _every_continuation(model: Model, vocab_size: int, max_tokens: int) -> dict[tuple[int, ...], float]:
    """All outputs with their log-probabilities: those that end, and those that reach max_tokens."""
    found: dict[tuple[int, ...], float] = {}
    for length in range(1, max_tokens + 1):
        for tokens in itertools.product(range(vocab_size), repeat=length):
            ends = tokens[-1] == _END
            if _END in tokens[:-1] or not (ends or length == max_tokens):
                continue
            found[tokens] = sum(dict(model(tokens[:i]))[token] for i, token in enumerate(tokens))
    return found


async def _search(model: Model, *, num_next: int, **options: Any) -> list[Beam]:
    async def expand(outputs: Sequence[tuple[int, ...]]) -> list[list[tuple[int, float]]]:
        return [model(output)[:num_next] for output in outputs]

    return await search(expand, ending_ids={_END}, **options)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    vocab_size=st.integers(2, 4),
    max_tokens=st.integers(1, 4),
    length_penalty=st.sampled_from([-1.0, 0.0, 0.5, 1.0, 2.5]),
)
async def test_a_wide_search_finds_the_best_of_all(
    seed: int, vocab_size: int, max_tokens: int, length_penalty: float
) -> None:
    """With room for every continuation the result is the brute-force ranking, scores and order included."""
    model = _model(seed, vocab_size)
    every = _every_continuation(model, vocab_size, max_tokens)
    ranked = sorted((total / len(tokens) ** length_penalty for tokens, total in every.items()), reverse=True)
    width = len(every)
    beams = await _search(
        model, num_next=vocab_size, width=width, max_tokens=max_tokens, length_penalty=length_penalty
    )
    assert [beam.score(length_penalty) for beam in beams] == pytest.approx(ranked)
    for beam in beams:
        assert beam.total == pytest.approx(every[beam.token_ids])
        assert beam.has_ended == (beam.token_ids[-1] == _END)
        assert [found.token_id for found in beam.logprobs] == list(beam.token_ids)
        assert sum(found.logprob for found in beam.logprobs) == pytest.approx(beam.total)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10_000), width=st.integers(1, 4), penalty=st.sampled_from([-1.0, 0.0, 1.0, 2.0]))
async def test_stopping_early_changes_nothing(seed: int, width: int, penalty: float) -> None:
    """The search may stop when no beam can win any more, never sooner: the same result as without that rule."""
    model, max_tokens = _model(seed, 5), 6

    async def without_the_rule() -> list[tuple[int, ...]]:
        live, ended = [((), 0.0)], list[tuple[tuple[int, ...], float]]()
        for _ in range(max_tokens):
            grown = [((*t, n), total + p) for t, total in live for n, p in model(t)]
            ended += [entry for entry in grown if entry[0][-1] == _END]
            live = sorted((e for e in grown if e[0][-1] != _END), key=lambda entry: -entry[1])[:width]
        ranked = sorted(ended + live, key=lambda entry: -(entry[1] / len(entry[0]) ** penalty))
        return [tokens for tokens, _ in ranked[:width]]

    beams = await _search(model, num_next=5, width=width, max_tokens=max_tokens, length_penalty=penalty)
    assert [beam.token_ids for beam in beams] == await without_the_rule()


async def test_it_stops_when_nothing_can_win_any_more() -> None:
    """A certain end is taken at once: no rounds are spent on what cannot become better."""
    rounds = []

    def model(before: Sequence[int]) -> list[tuple[int, float]]:
        rounds.append(tuple(before))
        return [(_END, math.log(0.9)), (1, math.log(0.05)), (2, math.log(0.05))]

    beams = await _search(model, num_next=3, width=1, max_tokens=50, length_penalty=0.0)
    assert beams[0].token_ids == (_END,) and rounds == [()]


def _letters(seed: int) -> Model:
    """A model over the fake engine's vocabulary that likes some letters, and its end."""
    inner = _model(seed, 6)
    names = [EOS, *b"abcde"]
    return lambda before: [(names[token], value) for token, value in inner(before)]


async def test_through_the_openai_api(make_suite: Any) -> None:
    """The n best texts, best first, with finish reasons and counts; each round is one request a beam."""
    model = _letters(5)
    scheduler = FakeScheduler(next_tokens=lambda before: model(before))
    suite = await make_suite([scheduler])
    answer = await suite.client.complete(
        [[65, 66]], use_beam_search=True, n=2, max_tokens=4, length_penalty=0.0, logprobs=1
    )
    assert answer.status == 200
    texts = [choice["text"] for choice in answer.json["choices"]]
    assert len(set(texts)) == 2
    totals = [sum(choice["logprobs"]["token_logprobs"]) for choice in answer.json["choices"]]
    assert totals == sorted(totals, reverse=True)
    every: dict[str, float] = {}
    for length in range(1, 5):
        for tokens in itertools.product([EOS, *b"abcde"], repeat=length):
            if EOS in tokens[:-1] or not (tokens[-1] == EOS or length == 4):
                continue
            total = sum(dict(model([65, 66, *tokens[:i]]))[token] for i, token in enumerate(tokens))
            every[bytes(t for t in tokens if t < 256).decode() + ("" if tokens[-1] == EOS else "+")] = total
    ends = ["" if c["finish_reason"] == "stop" else "+" for c in answer.json["choices"]]
    for text, end, total in zip(texts, ends, totals, strict=True):
        assert every[text + end] == pytest.approx(total, rel=1e-5)
    assert all(len(c["logprobs"]["top_logprobs"][0]) <= 2 for c in answer.json["choices"])
    assert answer.json["usage"]["completion_tokens"] == sum(
        len(c["logprobs"]["tokens"]) for c in answer.json["choices"]
    )
    assert all(s.sampling.max_tokens == 1 and s.sampling.num_logprobs == 4 for s in scheduler.submits)
    assert not scheduler.running and suite.gateway.pool.num_requests == 0


async def test_chat_and_the_typed_api(make_suite: Any) -> None:
    """The same search for a conversation and over gRPC; ignore_eos goes past the end, stop ids still end."""
    model = _letters(9)
    suite = await make_suite([FakeScheduler(next_tokens=lambda before: model(before))])
    chat = (await suite.client.chat("hi", use_beam_search=True, n=3, max_tokens=3)).json
    assert [choice["index"] for choice in chat["choices"]] == [0, 1, 2]
    request = generate_pb2.GenerateRequest(
        token_ids=generate_pb2.TokenIds(ids=[65]),
        n=2,
        sampling=sampling_pb2.SamplingParams(max_tokens=5, ignore_eos=True, stop_token_ids=[97]),
        beam_search=generate_pb2.BeamSearch(length_penalty=0.0),
    )
    events = [event async for event in suite.client.inference.Generate(request, timeout=15)]
    ends = [e.sequence_finished for e in events if e.HasField("sequence_finished")]
    assert len(ends) == 2 and events[-1].HasField("completed")
    for end in ends:
        tokens = [
            i for e in events if e.delta.sequence_index == end.sequence_index for i in e.delta.token_ids
        ]
        assert end.num_output_tokens == len(tokens)
        assert (end.finish_reason == sampling_pb2.FINISH_REASON_STOP) == (tokens[-1] == 97)
        assert 97 not in tokens[:-1]


async def test_a_refusing_engine_fails_the_search_and_leaves_nothing(make_suite: Any) -> None:
    """A refusal in a round is the call's error, with its status; no request of any round is left anywhere."""
    suite = await make_suite([FakeScheduler(reject_with=QueueFull(2.0))])
    answer = await suite.client.complete("x", use_beam_search=True, n=4, max_tokens=3)
    assert (answer.status, answer.headers["retry-after"]) == (429, "2")
    assert suite.gateway.pool.num_requests == 0
    assert suite.gateway.admission.num_in_flight == 0


async def test_a_client_that_goes_ends_the_round(make_suite: Any) -> None:
    """Every beam under way is aborted at the engine when the client cancels."""
    suite = await make_suite([FakeScheduler(is_paused=True)])
    call = suite.client.start(
        "Completions", {"prompt": "x", "use_beam_search": True, "n": 2, "max_tokens": 3}
    )
    reader = asyncio.ensure_future(call.read())
    await _eventually(lambda: len(suite.scheduler.submits) == 1)
    call.cancel()
    await asyncio.gather(reader, return_exceptions=True)
    await _eventually(lambda: len(suite.scheduler.aborts) == 1 and suite.gateway.pool.num_requests == 0)


async def _eventually(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.002)
