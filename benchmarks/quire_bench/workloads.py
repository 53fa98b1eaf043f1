"""What to ask for: named and parametrised lists of generation requests, reproducible from a seed.

Prompts are token ids (exact lengths, no tokeniser in the client) or words. It knows no server and no clock.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

# Ids between these are ordinary text tokens in every vocabulary of 32k or more: above the control tokens.
FIRST_TOKEN_ID, LAST_TOKEN_ID = 1000, 30000
WORD_TEXT = """
the of and to in is that for it was on are as with his they at be this from have or by one had not
but what all were when we there can an your which their said if do will each about how up out them
then she many some so these would other into has more her two like him see time could no make than
first been its who now people my made over did down only way find use may water long little very
after words called just where most know
"""
WORDS = WORD_TEXT.split()


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One request. `prompt` is token ids, text, or chat messages; `max_tokens` new tokens are asked for."""

    prompt: list[int] | str | list[dict[str, Any]]
    max_tokens: int
    num_prompt_tokens: int  # exact for token ids; one a word for words; 0 when unknown


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests with the load they are meant for. `warm_up` requests are sent first, one at a time, and not counted."""

    name: str
    requests: list[GenerationRequest]
    concurrency: int = 8
    warm_up: tuple[GenerationRequest, ...] = ()
    description: str = ""


def token_ids(rng: random.Random, num_tokens: int) -> list[int]:
    """`num_tokens` ids of ordinary tokens."""
    return [rng.randint(FIRST_TOKEN_ID, LAST_TOKEN_ID) for _ in range(num_tokens)]


def words(rng: random.Random, num_tokens: int) -> str:
    """Text of `num_tokens` common English words: about as many tokens in usual vocabularies."""
    return " ".join(rng.choice(WORDS) for _ in range(num_tokens))


def random_prompts(
    name: str, num_requests: int, num_input: int, num_output: int, *, seed: int, concurrency: int = 8
) -> Workload:
    """Distinct random prompts of one length; every request asks for `num_output` tokens."""
    rng = random.Random(f"{seed}/{name}")
    requests = [
        GenerationRequest(token_ids(rng, num_input), num_output, num_input) for _ in range(num_requests)
    ]
    text = f"{num_requests} distinct prompts, {num_input} in / {num_output} out"
    return Workload(name, requests, concurrency, description=text)


def shared_prefix(
    name: str,
    num_requests: int,
    num_prefix: int,
    num_suffix: int,
    num_output: int,
    *,
    seed: int,
    concurrency: int = 8,
) -> Workload:
    """Prompts that share their first `num_prefix` tokens. The prefix is sent once before, so that it can be cached."""
    rng = random.Random(f"{seed}/{name}")
    prefix = token_ids(rng, num_prefix)

    def request() -> GenerationRequest:
        return GenerationRequest(prefix + token_ids(rng, num_suffix), num_output, num_prefix + num_suffix)

    text = f"{num_requests} prompts sharing {num_prefix} tokens, +{num_suffix} in / {num_output} out"
    return Workload(name, [request() for _ in range(num_requests)], concurrency, (request(),), text)


def lognormal_lengths(
    name: str,
    num_requests: int,
    *,
    seed: int,
    concurrency: int = 8,
    mean_input: int = 220,
    mean_output: int = 200,
    max_total: int = 2048,
) -> Workload:
    """Chat-like lengths: log-normal (sigma 1.0 in, 0.8 out) about the means of the public ShareGPT conversations."""
    rng = random.Random(f"{seed}/{name}")

    def length(mean: int, sigma: float) -> int:
        # The mean of a log-normal is exp(mu + sigma^2 / 2).
        return max(4, round(rng.lognormvariate(math.log(mean) - sigma * sigma / 2, sigma)))

    requests = []
    for _ in range(num_requests):
        num_input = min(length(mean_input, 1.0), max_total - 4)
        num_output = min(length(mean_output, 0.8), max_total - num_input)
        requests.append(GenerationRequest(token_ids(rng, num_input), num_output, num_input))
    text = f"{num_requests} prompts of log-normal lengths, mean {mean_input} in / {mean_output} out"
    return Workload(name, requests, concurrency, description=text)


def from_dataset(
    path: Path, *, default_max_tokens: int = 128, limit: int | None = None, concurrency: int = 8
) -> Workload:
    """One request a line of a JSONL file: {"prompt": text or ids} or {"messages": [...]}, and "max_tokens" if wanted.

    ValueError names the line that is wrong.
    """
    requests = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if not line.strip():
            continue
        try:
            item = json.loads(line)
            prompt = item["messages"] if "messages" in item else item["prompt"]
            max_tokens = int(item.get("max_tokens", default_max_tokens))
        except (json.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(
                f'{path}:{number}: expected a JSON object with "prompt" or "messages" ({error!r})'
            ) from error
        is_ids = isinstance(prompt, list) and bool(prompt) and isinstance(prompt[0], int)
        requests.append(GenerationRequest(prompt, max_tokens, len(prompt) if is_ids else 0))
        if limit is not None and len(requests) == limit:
            break
    if not requests:
        raise ValueError(f"{path}: no requests in the file")
    return Workload(path.stem, requests, concurrency, description=f"{len(requests)} requests of {path.name}")


# The four of every CPU comparison; each takes a seed, so that a repeat meets no warm prefix cache by accident.
NAMED: dict[str, Callable[[int], Workload]] = {
    "C1": lambda seed: random_prompts("C1", 4, 128, 128, seed=seed, concurrency=1),
    "C2": lambda seed: random_prompts("C2", 32, 128, 128, seed=seed, concurrency=8),
    "C3": lambda seed: random_prompts("C3", 64, 256, 64, seed=seed, concurrency=32),
    "C4": lambda seed: shared_prefix("C4", 16, 1024, 32, 32, seed=seed, concurrency=8),
}


def as_words(workload: Workload, *, seed: int) -> Workload:
    """The same workload with words in place of token ids, for servers that take text only (common prefixes stay)."""
    rng = random.Random(f"{seed}/words")
    vocabulary: dict[int, str] = {}

    def convert(request: GenerationRequest) -> GenerationRequest:
        if isinstance(request.prompt, list) and request.prompt and isinstance(request.prompt[0], int):
            ids = [i for i in request.prompt if isinstance(i, int)]
            text = " ".join(vocabulary.setdefault(i, rng.choice(WORDS)) for i in ids)
            return replace(request, prompt=text)
        return request

    return replace(
        workload,
        requests=[convert(r) for r in workload.requests],
        warm_up=tuple(convert(r) for r in workload.warm_up),
    )
