"""Scores of pairs of texts, and documents in their order: by a cross-encoder, or by the cosine of two embeddings.

One job; knows no dialect.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from quire_gateway.models import ModelTask, ServedModel
from quire_gateway.pooling.call import MAX_INPUTS, PoolingCall, PoolingInput, TextPair
from quire_gateway.pooling.params import PoolingTask
from quire_gateway.pooling.runner import Account, PoolingRunner
from quire_gateway.requests import TextPrompt
from quire_servicekit.errors import InvalidRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreCall:
    """Pairs to score: one first text for all second ones, or as many of each.

    first_name, second_name: what the client calls the two lists, for errors. The rest: see PoolingCall.
    """

    firsts: tuple[str, ...]
    seconds: tuple[str, ...]
    first_name: str
    second_name: str
    model: str = ""
    normalize: bool | None = None
    truncate_tokens: int | None = None
    truncate_name: str = "truncate_prompt_tokens"
    priority: int = 0


@dataclass(frozen=True, slots=True)
class Scores:
    """One score per pair, in order."""

    model: ServedModel
    values: list[float]
    num_prompt_tokens: int


async def score(runner: PoolingRunner, call: ScoreCall, account: Account) -> Scores:
    """Scores of all pairs. Raises QuireErrors, naming the text that is at fault."""
    model = runner.engines.model(call.model, ModelTask.SCORE)
    _check(call)
    if ModelTask.EMBED in model.tasks:
        return await _by_cosine(runner, call, account)
    firsts = call.firsts * len(call.seconds) if len(call.firsts) == 1 else call.firsts
    pairs = tuple(TextPair(a, b) for a, b in zip(firsts, call.seconds, strict=True))

    def names(index: int) -> str:
        return f"{call.second_name}[{index}]"

    result = await runner.run(_pooling_call(call, pairs, PoolingTask.CLASSIFY, names), account)
    return Scores(result.model, [float(vector[0]) for vector in result.vectors], result.num_prompt_tokens)


def ranked(values: Sequence[float], top_n: int | None) -> list[int]:
    """Indices by descending score, equal ones in order; the first `top_n`."""
    order = sorted(range(len(values)), key=lambda index: (-values[index], index))
    return order if top_n is None else order[:top_n]


async def _by_cosine(runner: PoolingRunner, call: ScoreCall, account: Account) -> Scores:
    texts = tuple(TextPrompt(text) for text in (*call.firsts, *call.seconds))
    num_firsts = len(call.firsts)

    def name_of(index: int) -> str:
        if index >= num_firsts:
            return f"{call.second_name}[{index - num_firsts}]"
        return call.first_name if num_firsts == 1 else f"{call.first_name}[{index}]"

    # The cosine is that of the embeddings at length 1, whatever the model's default.
    pooling = _pooling_call(call, texts, PoolingTask.EMBED, name_of, normalize=True)
    result = await runner.run(pooling, account)
    rows = np.stack(result.vectors)
    values = (rows[:num_firsts] * rows[num_firsts:]).sum(axis=1).tolist()
    return Scores(result.model, values, result.num_prompt_tokens)


def _pooling_call(
    call: ScoreCall,
    inputs: tuple[PoolingInput, ...],
    task: PoolingTask,
    name_of: Callable[[int], str],
    normalize: bool | None = None,
) -> PoolingCall:
    return PoolingCall(
        inputs=inputs,
        wants=ModelTask.SCORE,
        name_of=name_of,
        model=call.model,
        task=task,
        normalize=call.normalize if normalize is None else normalize,
        truncate_tokens=call.truncate_tokens,
        truncate_name=call.truncate_name,
        priority=call.priority,
    )


def _check(call: ScoreCall) -> None:
    num_firsts, num_seconds = len(call.firsts), len(call.seconds)
    # With an embedding model the first text is an input too.
    if not 1 <= num_seconds < MAX_INPUTS:
        raise InvalidRequest(call.second_name, f"1 to {MAX_INPUTS - 1} texts", num_seconds)
    if num_firsts not in (1, num_seconds):
        limit = f"one text, or as many as {call.second_name} ({num_seconds})"
        raise InvalidRequest(call.first_name, limit, num_firsts)
