"""Beam search: the most probable continuations of a prompt, found on top of ordinary generation.

`search` is the algorithm and knows no engine. `run_beam_search` feeds it from one: each round asks for one token of
every beam, with the log-probabilities of the likeliest ones; the prefix cache holds what the beams have in common.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from quire_gateway.active_request import ActiveRequest
from quire_gateway.requests import GenerationRequest
from quire_gateway.sampling import Sampling
from quire_gateway.sequences import FinishReason, OutputSpec, TokenLogprob, WakeOn
from quire_servicekit.errors import InvalidRequest, Unsupported

if TYPE_CHECKING:
    from quire_gateway.generation import Generation, Generator

MAX_LENGTH_PENALTY = 10.0

#: The likeliest next tokens, descending, with their log-probabilities.
NextTokens = Sequence[tuple[int, float]]
#: The next tokens of each of several outputs.
Expand = Callable[[Sequence[tuple[int, ...]]], Awaitable[Sequence[NextTokens]]]

#: What a request may not ask for beside beam search, and the values that ask for nothing.
_EXCLUDED: dict[str, tuple[object, ...]] = {
    "temperature": (None, 0.0, 1.0),
    "top_p": (None, 1.0),
    "top_k": (None, 0),
    "min_p": (None, 0.0),
    "presence_penalty": (None, 0.0),
    "frequency_penalty": (None, 0.0),
    "repetition_penalty": (None, 1.0),
    "min_tokens": (None, 0),
    "num_prompt_logprobs": (None,),
    "logit_bias": ({},),
    "allowed_token_ids": ((),),
    "bad_token_sequences": ((),),
    "logprob_token_ids": ((),),
    "constraint": (None,),
    "reasoning": (None,),
}


@dataclass(frozen=True, slots=True)
class Beam:
    """A continuation. total: log-probability of all its tokens; has_ended: the last of them ends it."""

    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    total: float = 0.0
    has_ended: bool = False

    def score(self, length_penalty: float) -> float:
        """What beams are ordered by: the log-probability over the number of tokens to the power of the penalty."""
        return self.total / math.pow(len(self.token_ids), length_penalty)

    def extended(self, token_id: int, logprob: float, rank: int, top: NextTokens, *, ends: bool) -> Beam:
        """The beam and one more token."""
        found = TokenLogprob(token_id, logprob, rank, tuple(top))
        return Beam((*self.token_ids, token_id), (*self.logprobs, found), self.total + logprob, ends)


async def search(
    expand: Expand, *, width: int, max_tokens: int, ending_ids: Collection[int], length_penalty: float
) -> list[Beam]:
    """The `width` best continuations, best first: fewer only if there are fewer.

    Every round keeps the `width` likeliest beams that go on, and the best of those that have ended. It stops when all
    have ended, at max_tokens, or when no beam can still become better than those that have.
    """
    live, ended = [Beam()], list[Beam]()

    def by_score(beam: Beam) -> float:
        return -beam.score(length_penalty)

    for _ in range(max_tokens):
        candidates = []
        for beam, top in zip(live, await expand([beam.token_ids for beam in live]), strict=True):
            for rank, (token_id, logprob) in enumerate(top, start=1):
                candidates.append(beam.extended(token_id, logprob, rank, top, ends=token_id in ending_ids))
        ended = sorted([*ended, *(beam for beam in candidates if beam.has_ended)], key=by_score)[:width]
        going_on = (beam for beam in candidates if not beam.has_ended)
        live = sorted(going_on, key=lambda beam: -beam.total)[:width]
        if not live or (len(ended) == width and _is_settled(live[0], ended[-1], max_tokens, length_penalty)):
            break
    return sorted([*ended, *live], key=by_score)[:width]


def _is_settled(best: Beam, worst_ended: Beam, max_tokens: int, length_penalty: float) -> bool:
    """Whether no continuation of the likeliest beam can beat the worst that is kept.

    More tokens only lower the log-probability, so the best score is that of the present one at the kindest length.
    """
    lengths = (len(best.token_ids), max_tokens)
    bound = max(best.total / math.pow(length, length_penalty) for length in lengths)
    return bound <= worst_ended.score(length_penalty)


def validate_beam_search(request: GenerationRequest, names: Mapping[str, str] | None = None) -> None:
    """Raise for what does not go together with beam search, by name, and for a penalty out of range.

    names: what the client's dialect calls a field.
    """
    options = request.beam_search
    assert options is not None, "only for beam search"
    if not (math.isfinite(options.length_penalty) and abs(options.length_penalty) <= MAX_LENGTH_PENALTY):
        limit = f"from {-MAX_LENGTH_PENALTY:g} to {MAX_LENGTH_PENALTY:g}"
        raise InvalidRequest("length_penalty", limit, options.length_penalty)
    excluded = [name for name, neutral in _EXCLUDED.items() if getattr(request.sampling, name) not in neutral]
    excluded += [name for name in ("stop", "bad_words") if getattr(request, name)]
    if excluded:
        name = (names or {}).get(excluded[0], excluded[0])
        raise Unsupported(name, message=f"{name} is not supported together with beam search")


async def run_beam_search(
    generator: Generator, generation: Generation, requests: Sequence[GenerationRequest]
) -> None:
    """Complete a generation whose requests were not submitted: each gets its n best continuations as its sequences.

    Raises what an engine refuses or fails with; cancelling aborts what is under way.
    """
    for active, request in zip(generation.requests, requests, strict=True):
        options, spec = request.beam_search, active.spec
        assert options is not None, "all requests of a call share their options"
        if spec.n > spec.model.vocab_size:
            raise InvalidRequest("n", f"at most {spec.model.vocab_size} (the vocabulary size)", spec.n)
        ending = set(spec.sampling.stop_token_ids)
        if not spec.sampling.ignore_eos:
            ending.update(spec.model.eos_token_ids)
        assert spec.sampling.max_tokens is not None, "resolved"
        beams = await search(
            _Expander(generator, active).expand,
            width=spec.n,
            max_tokens=spec.sampling.max_tokens,
            ending_ids=ending,
            length_penalty=options.length_penalty,
        )
        for index, beam in enumerate(beams):
            await _deliver(generator, active, index, beam)


class _Expander:
    """Rounds of one request on the engines."""

    def __init__(self, generator: Generator, active: ActiveRequest) -> None:
        self._generator, self._active = generator, active
        self._num_rounds = 0
        spec = active.spec
        num_logprobs = min(2 * spec.n, spec.model.vocab_size)
        # Greedy: what is sampled does not matter, only what was likely.
        self._sampling = Sampling(temperature=0.0, seed=0, max_tokens=1, num_logprobs=num_logprobs)

    async def expand(self, outputs: Sequence[tuple[int, ...]]) -> list[NextTokens]:
        """The next tokens of each output."""
        self._num_rounds += 1
        outlet = self._generator.new_outlet()
        spec, engines = self._active.spec, self._generator.engines
        steps = [
            ActiveRequest(
                dataclasses.replace(
                    spec,
                    id=f"{spec.id}-beam{self._num_rounds}.{number}",
                    prompt_token_ids=[*spec.prompt_token_ids, *output],
                    sampling=self._sampling,
                    n=1,
                    detokenize=False,
                ),
                outlet,
                OutputSpec(wake_on=WakeOn.END),
                first_choice_index=number,
            )
            for number, output in enumerate(outputs)
        ]
        found: list[NextTokens] = [()] * len(steps)
        try:
            for step in steps:
                engines.submit(step)
            num_left = len(steps)
            while num_left:
                for sequence in await outlet.take():
                    found[sequence.choice_index] = sequence.take().logprobs[0].top
                    num_left -= 1
        finally:
            for step in steps:
                engines.release(step)
        self._active.accept(steps[0].num_cached_tokens)
        return found


async def _deliver(generator: Generator, active: ActiveRequest, index: int, beam: Beam) -> None:
    """Let a sequence of the request have a beam as its whole output."""
    spec, token_ids = active.spec, list(beam.token_ids)
    text = ""
    if spec.detokenize:
        text = await generator.tokenizer.decode(token_ids, skip_special_tokens=spec.skip_special_tokens)
    num_top = spec.sampling.num_logprobs
    logprobs = [] if num_top is None else [found._replace(top=found.top[:num_top]) for found in beam.logprobs]
    sequence = active.sequences[index]
    # No engine runs it.
    sequence.is_engine_done = True
    reason = FinishReason.STOP if beam.has_ended else FinishReason.LENGTH
    sequence.deliver(text, token_ids, logprobs, 0, reason)
