"""Log-probabilities, masks and beams of the real model through the whole suite: what it says twice must agree."""

import itertools
import json
import math

import httpx
import pytest

from quire.inference.v1 import generate_pb2, inference_service_pb2_grpc

pytestmark = pytest.mark.e2e

QUESTION = "The capital of France is Paris, the capital of Italy is"
#: Longer than a step's token budget, so that it is prefilled in chunks.
LONG = " ".join(f"Item {number} of the list is number {number * 7 % 101}." for number in range(120))


def complete(suite, **options):
    """A completion's JSON; greedy unless the options say otherwise."""
    answer = httpx.post(f"{suite.url}/v1/completions", json={"temperature": 0, **options}, timeout=120)
    assert answer.status_code == 200, answer.text
    return answer.json()


def values(choice):
    """The log-probabilities of a choice's tokens, the first one's (None) left out."""
    return [value for value in choice["logprobs"]["token_logprobs"] if value is not None]


def test_a_text_scored_as_a_prompt_has_the_log_probabilities_it_was_generated_with(smollm2_suite):
    """Decoding token by token and scoring the same tokens as a prompt agree, in one chunk or several."""
    for prompt in (QUESTION, LONG):
        first = complete(
            smollm2_suite, prompt=prompt, max_tokens=12, logprobs=0, return_token_ids=True, ignore_eos=True
        )["choices"][0]
        tokens = first["prompt_token_ids"] + first["token_ids"]
        scored = complete(smollm2_suite, prompt=tokens, echo=True, logprobs=0, max_tokens=0)["choices"][0]
        assert len(scored["logprobs"]["tokens"]) == len(tokens)
        assert values(scored)[-12:] == pytest.approx(values(first), abs=2e-3)


def test_a_prompt_has_the_same_scores_cold_cached_chunked_and_shared(smollm2_suite):
    """Neither the prefix cache, nor chunks, nor other sequences of the request change a prompt's log-probabilities."""
    cold = complete(smollm2_suite, prompt=LONG, prompt_logprobs=1, max_tokens=1)
    warm = complete(smollm2_suite, prompt=LONG, prompt_logprobs=1, max_tokens=1)
    several = complete(smollm2_suite, prompt=LONG, prompt_logprobs=1, max_tokens=1, n=3)
    for other in (warm, several):
        for ours, theirs in zip(
            cold["choices"][0]["prompt_logprobs"][1:], other["choices"][0]["prompt_logprobs"][1:], strict=True
        ):
            assert ours.keys() == theirs.keys()
            for token_id, entry in ours.items():
                assert theirs[token_id]["logprob"] == pytest.approx(entry["logprob"], abs=2e-3)
    assert warm["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert len(cold["choices"][0]["prompt_logprobs"]) == cold["usage"]["prompt_tokens"] > 512


def test_streamed_and_whole_echoes_agree(smollm2_suite):
    """The pieces of a streamed echo with log-probabilities, joined, are the whole answer's."""
    options = {"prompt": QUESTION, "echo": True, "logprobs": 1, "max_tokens": 4}
    whole = complete(smollm2_suite, **options)["choices"][0]
    chunks = list(smollm2_suite.openai().completions.create(
        model="smollm2-135m-instruct", temperature=0, stream=True, **options
    ))  # fmt: skip
    choices = [chunk.choices[0] for chunk in chunks if chunk.choices]
    assert "".join(choice.text for choice in choices) == whole["text"]
    tokens = list(itertools.chain(*(c.logprobs.tokens for c in choices if c.logprobs)))
    assert tokens == whole["logprobs"]["tokens"]


def test_bad_words_never_occur(smollm2_suite):
    """What the model would say is not said when it is forbidden, greedy or drawn."""
    said = complete(smollm2_suite, prompt=QUESTION, max_tokens=8)["choices"][0]["text"]
    assert "Rome" in said
    for options in ({}, {"temperature": 1.0, "n": 4, "seed": 3}):
        answer = complete(smollm2_suite, prompt=QUESTION, max_tokens=24, bad_words=["Rome"], **options)
        assert all("Rome" not in choice["text"] for choice in answer["choices"])


def test_min_tokens_holds_back_every_end(smollm2_suite):
    """No end of sequence and no stop id comes before min_tokens."""
    options = {"prompt": QUESTION, "max_tokens": 40, "return_token_ids": True}
    plain = complete(smollm2_suite, **options)["choices"][0]["token_ids"]
    stop = plain[2]
    held = complete(smollm2_suite, min_tokens=20, stop_token_ids=[stop], **options)["choices"][0]
    assert len(held["token_ids"]) >= 20 and stop not in held["token_ids"][:20]


def test_allowed_and_chosen_token_ids(smollm2_suite):
    """Only allowed tokens are drawn, and just the chosen tokens' log-probabilities come back."""
    options = {"prompt": QUESTION, "max_tokens": 6, "return_token_ids": True, "ignore_eos": True}
    plain = complete(smollm2_suite, **options)["choices"][0]["token_ids"]
    allowed = sorted(set(plain[:2]))
    answer = complete(smollm2_suite, allowed_token_ids=allowed, temperature=1.5, seed=1, **{
        key: value for key, value in options.items() if key != "temperature"
    })  # fmt: skip
    assert set(answer["choices"][0]["token_ids"]) <= set(allowed)
    chosen = complete(smollm2_suite, logprob_token_ids=allowed, **options)["choices"][0]["logprobs"]
    assert all(set(allowed) and len(top) <= len(allowed) + 1 for top in chosen["top_logprobs"])


def test_beams_are_at_least_as_probable_as_greedy(smollm2_suite):
    """One beam is greedy decoding; more beams find a continuation at least as probable, best first."""
    options = {"prompt": QUESTION, "max_tokens": 6, "logprobs": 0, "ignore_eos": True}
    greedy = complete(smollm2_suite, **options)["choices"][0]
    search = {"use_beam_search": True, "length_penalty": 0.0, **options}
    one = complete(smollm2_suite, n=1, **search)["choices"][0]
    assert one["text"] == greedy["text"]
    assert values(one) == pytest.approx(values(greedy), abs=2e-3)
    four = complete(smollm2_suite, n=4, **search)["choices"]
    totals = [math.fsum(values(choice)) for choice in four]
    assert totals == sorted(totals, reverse=True) and len({choice["text"] for choice in four}) == 4
    assert totals[0] >= math.fsum(values(greedy)) - 1e-3


def test_typed_scores_over_grpc_and_rest(smollm2_suite):
    """The typed API tells a prompt's log-probabilities before the first delta, as gRPC and as REST."""
    request = generate_pb2.GenerateRequest(text=QUESTION)
    request.sampling.max_tokens = 2
    request.sampling.num_prompt_logprobs = 1
    stub = inference_service_pb2_grpc.InferenceStub(smollm2_suite.channel)
    events = list(stub.Generate(request, timeout=60))
    assert [event.WhichOneof("event") for event in events[:2]] == ["started", "prompt_logprobs"]
    found = events[1].prompt_logprobs.tokens
    assert len(found) == events[0].started.num_prompt_tokens - 1
    body = {"text": QUESTION, "sampling": {"maxTokens": 2, "numPromptLogprobs": 1}}
    text = httpx.post(f"{smollm2_suite.url}/quire/v1/generate", json=body, timeout=60).text
    assert text.count("promptLogprobs") + text.count("prompt_logprobs") == 1


def test_zero_and_unset_stay_apart_on_every_way_in(smollm2_suite):
    """Zero log-probabilities are the sampled token's alone, unset is none: over gRPC, and as REST through Envoy."""
    stub = inference_service_pb2_grpc.InferenceStub(smollm2_suite.channel)
    request = generate_pb2.GenerateRequest(text=QUESTION)
    request.sampling.max_tokens = 3
    request.sampling.temperature = 0
    for wants in (False, True):
        if wants:
            request.sampling.num_logprobs = 0
        found = [entry for event in stub.Generate(request, timeout=60) for entry in event.delta.logprobs]
        assert len(found) == (3 if wants else 0) and not any(entry.top for entry in found)
    texts = set()
    for sampling in ({"temperature": 0, "topK": 0, "numLogprobs": 0}, {"temperature": 0}):
        body = {"text": QUESTION, "sampling": {"maxTokens": 3, "seed": str(2**63 + 5), **sampling}}
        answer = httpx.post(f"{smollm2_suite.url}/quire/v1/generate", json=body, timeout=60)
        assert answer.status_code == 200, answer.text
        events = [json.loads(line[5:]) for line in answer.text.splitlines() if line.startswith("data:")]
        deltas = [event["delta"] for event in events if "delta" in event]
        texts.add("".join(delta.get("text", "") for delta in deltas))
        has_scores = any(delta.get("logprobs") for delta in deltas)
        assert has_scores == ("numLogprobs" in sampling)
        assert events[0]["started"]["seed"] == str(2**63 + 5)
    assert len(texts) == 1
