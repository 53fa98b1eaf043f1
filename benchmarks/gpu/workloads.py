"""Workloads W1 to W6 of the engine benchmark: seeded, so that every engine under test gets the same requests.

The lengths and token ids are those of the generator with which vLLM 0.24 was measured on the same kind of GPU (seed
20260, numpy's PCG64): changing a constant here ends the comparison. A request is its prompt and how many tokens it
gets; decoding is greedy and the end of sequence is ignored. `rep` changes the token ids, never the lengths, so that no
repetition finds another's prompt in a prefix cache.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

SEED = 20260
# Ids below and the last ones of a vocabulary are special tokens in the models whose shapes are used.
FIRST_ID, NUM_LAST_IDS = 1000, 2000


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt and the number of tokens to generate."""

    prompt: list[int]
    num_output_tokens: int


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests that are sent all at once. warm_up: requests that are run to their end before the clock starts."""

    requests: list[Request]
    warm_up: list[Request] = field(default_factory=list)

    @property
    def num_prompt_tokens(self) -> int:
        """Prompt tokens of all requests."""
        return sum(len(request.prompt) for request in self.requests)

    @property
    def num_output_tokens(self) -> int:
        """Tokens that all requests generate."""
        return sum(request.num_output_tokens for request in self.requests)


def w1(vocab: int, rep: int) -> Workload:
    """One sequence, 128 tokens in, 256 out."""
    rng = _rng(1, rep)
    return Workload([Request(_ids(rng, 128, vocab), 256)])


def w2(vocab: int, rep: int) -> Workload:
    """32 sequences, 512 in, 256 out."""
    rng = _rng(2, rep)
    return Workload([Request(_ids(rng, 512, vocab), 256) for _ in range(32)])


def w3(vocab: int, rep: int) -> Workload:
    """256 sequences, 1024 in, 256 out."""
    rng = _rng(3, rep)
    return Workload([Request(_ids(rng, 1024, vocab), 256) for _ in range(256)])


def w4(vocab: int, rep: int, num_requests: int = 16) -> Workload:
    """16 prompts of 4096 tokens, one token out: prefill alone."""
    rng = _rng(4, rep, num_requests)
    return Workload([Request(_ids(rng, 4096, vocab), 1) for _ in range(num_requests)])


def w4_single(vocab: int, rep: int) -> Workload:
    """One prompt of 4096 tokens, one token out."""
    return w4(vocab, rep, 1)


def w5_cold(vocab: int, rep: int) -> Workload:
    """64 sequences with one prefix of 4096 tokens that nobody has seen, 128 of their own, 64 out."""
    rng = _rng(5, rep, 1)
    prefix = _ids(rng, 4096, vocab)
    return Workload([Request(prefix + _ids(rng, 128, vocab), 64) for _ in range(64)])


def w5_warm(vocab: int, rep: int) -> Workload:
    """The same once the prefix is in the cache. Other ids than the cold one's for the same `rep`."""
    cold = w5_cold(vocab, rep + 1000)
    return Workload(cold.requests, warm_up=[Request(cold.requests[0].prompt[:4096], 1)])


def w6_lengths(num_requests: int = 512) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Lengths in and out as in conversations: lognormal, mean about 220 and 190 before clipping."""
    rng = _rng(6)
    spread_in, spread_out = 1.0, 0.8
    inputs = rng.lognormal(np.log(220) - spread_in**2 / 2, spread_in, num_requests)
    outputs = rng.lognormal(np.log(190) - spread_out**2 / 2, spread_out, num_requests)
    return (
        np.clip(np.rint(inputs), 4, 1024).astype(np.int64),
        np.clip(np.rint(outputs), 1, 800).astype(np.int64),
    )


def w6(vocab: int, rep: int) -> Workload:
    """512 sequences of mixed lengths: 105032 tokens in, 95773 out."""
    inputs, outputs = w6_lengths()
    rng = _rng(6, 1, rep)
    return Workload([Request(_ids(rng, int(i), vocab), int(o)) for i, o in zip(inputs, outputs, strict=True)])


WORKLOADS: dict[str, Callable[[int, int], Workload]] = {
    "W1": w1, "W2": w2, "W3": w3, "W4": w4, "W4-single": w4_single, "W5-cold": w5_cold, "W5-warm": w5_warm, "W6": w6,
}  # fmt: skip


def _rng(*key: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([SEED, *key])))


def _ids(rng: np.random.Generator, count: int, vocab: int) -> list[int]:
    ids: list[int] = rng.integers(FIRST_ID, vocab - NUM_LAST_IDS, size=count, dtype=np.int64).tolist()
    return ids
