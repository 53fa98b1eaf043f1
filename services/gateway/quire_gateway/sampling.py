"""Sampling parameters: their limits, and how unset ones get the model's defaults.

One job: say which values are allowed and what an unset one means. Plain data: knows neither JSON nor protobuf. Field
names and limits are those of the contract (quire.sampling.v1).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from quire_gateway.structured import Constraint, ReasoningSpan, validate_constraint, validate_reasoning
from quire_servicekit.errors import InvalidRequest

MAX_LOGIT_BIAS = 300
MAX_STOP_TOKEN_IDS = 64
MAX_LOGPROBS = 20
MAX_LOGPROB_TOKEN_IDS = 128
MAX_BAD_SEQUENCES = 128
MAX_BAD_SEQUENCE_TOKENS = 64
MAX_SEED = 2**64 - 1
#: What asks for the log-probabilities of the whole vocabulary.
ALL_TOKENS = -1
#: Below it logits divided by the temperature would leave the range of numbers; such a temperature is as good as greedy.
MIN_TEMPERATURE = 0.01

#: Per number: lowest, highest, whether the lowest itself is allowed.
_RANGES: dict[str, tuple[float, float, bool]] = {
    "temperature": (0.0, 2.0, True),
    "top_p": (0.0, 1.0, False),
    "min_p": (0.0, 1.0, True),
    "presence_penalty": (-2.0, 2.0, True),
    "frequency_penalty": (-2.0, 2.0, True),
    "repetition_penalty": (0.0, 10.0, False),
    "seed": (0, MAX_SEED, True),
}

#: Parameters that a model's generation_config may give a default for.
_DEFAULTED = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How tokens are chosen. None is "unset": the model's default, else the contract's."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    num_logprobs: int | None = None
    min_tokens: int | None = None
    max_tokens: int | None = None
    ignore_eos: bool | None = None
    stop_token_ids: tuple[int, ...] = ()
    allowed_token_ids: tuple[int, ...] = ()
    #: ALL_TOKENS: the whole vocabulary's, as for num_logprobs.
    num_prompt_logprobs: int | None = None
    bad_token_sequences: tuple[tuple[int, ...], ...] = ()
    logprob_token_ids: tuple[int, ...] = ()
    constraint: Constraint | None = None
    reasoning: ReasoningSpan | None = None


def validate(
    sampling: Sampling,
    vocab_size: int,
    names: Mapping[str, str] | None = None,
    *,
    max_logprobs: int = MAX_LOGPROBS,
) -> None:
    """Raise InvalidRequest for the first parameter out of range.

    names: what the client's dialect calls a field, where that differs from ours. max_logprobs: ALL_TOKENS is no limit
    but the vocabulary.
    """
    called = names or {}
    for name, (low, high, includes_low) in _RANGES.items():
        value = getattr(sampling, name)
        if value is None:
            continue
        inside = math.isfinite(value) and (low <= value if includes_low else low < value) and value <= high
        if not inside:
            limit = f"from {low:g} to {high:g}" if includes_low else f"above {low:g} and at most {high:g}"
            raise InvalidRequest(
                called.get(name, name), limit if name != "seed" else f"from 0 to {MAX_SEED}", value
            )
    _validate_counts(sampling, vocab_size, called)
    _validate_logprobs(sampling, vocab_size, called, max_logprobs)
    _validate_ids(sampling, vocab_size, called)
    validate_bad_sequences(sampling, vocab_size, called)
    if sampling.constraint is not None:
        validate_constraint(sampling.constraint, called)
        _validate_beside_constraint(sampling)
    if sampling.reasoning is not None:
        validate_reasoning(sampling.reasoning, vocab_size, called.get("reasoning", "reasoning"))


def sampling_defaults(pairs: Iterable[str]) -> Sampling:
    """Defaults written as name=value. Raises InvalidRequest for what is no such pair, unknown or out of range."""
    values: dict[str, float | int] = {}
    for pair in pairs:
        name, _, text = pair.partition("=")
        if name not in _DEFAULTED:
            raise InvalidRequest("default_sampling", f"one of {', '.join(_DEFAULTED)}", name)
        try:
            values[name] = int(text) if name == "top_k" else float(text)
        except ValueError as error:
            raise InvalidRequest("default_sampling", f"a number for {name}", text) from error
    defaults = Sampling(**values)  # type: ignore[arg-type]
    # How large the vocabulary is nobody knows yet: as large as can be.
    validate(defaults, 2**32)
    return defaults


def _validate_counts(sampling: Sampling, vocab_size: int, called: Mapping[str, str]) -> None:
    top_k, min_tokens, max_tokens = sampling.top_k, sampling.min_tokens, sampling.max_tokens
    if top_k is not None and not 0 <= top_k <= vocab_size:
        raise InvalidRequest("top_k", f"from 0 to {vocab_size} (the vocabulary size)", top_k)
    if max_tokens is not None and max_tokens < 1:
        raise InvalidRequest(called.get("max_tokens", "max_tokens"), "at least 1", max_tokens)
    if min_tokens is not None and min_tokens < 0:
        raise InvalidRequest("min_tokens", "at least 0", min_tokens)
    if min_tokens and max_tokens is not None and min_tokens > max_tokens:
        raise InvalidRequest("min_tokens", f"at most max_tokens ({max_tokens})", min_tokens)


def _validate_logprobs(
    sampling: Sampling, vocab_size: int, called: Mapping[str, str], max_logprobs: int
) -> None:
    limit = vocab_size if max_logprobs == ALL_TOKENS else min(max_logprobs, vocab_size)
    for name in ("num_logprobs", "num_prompt_logprobs"):
        value = getattr(sampling, name)
        wanted = vocab_size if value == ALL_TOKENS else value
        if wanted is not None and not 0 <= wanted <= limit:
            raise InvalidRequest(called.get(name, name), f"from 0 to {limit}", value)
    name = called.get("logprob_token_ids", "logprob_token_ids")
    if len(sampling.logprob_token_ids) > MAX_LOGPROB_TOKEN_IDS:
        raise InvalidRequest(name, f"at most {MAX_LOGPROB_TOKEN_IDS} ids", len(sampling.logprob_token_ids))
    if sampling.logprob_token_ids and sampling.num_logprobs is not None:
        raise InvalidRequest(name, message=f"{name} excludes {called.get('num_logprobs', 'num_logprobs')}")


def validate_bad_sequences(sampling: Sampling, vocab_size: int, called: Mapping[str, str]) -> None:
    """Raise InvalidRequest for too many bad sequences, or one that is none. called: the dialect's names."""
    name, sequences = called.get("bad_token_sequences", "bad_token_sequences"), sampling.bad_token_sequences
    if len(sequences) > MAX_BAD_SEQUENCES:
        raise InvalidRequest(name, f"at most {MAX_BAD_SEQUENCES} sequences", len(sequences))
    for sequence in sequences:
        if not 1 <= len(sequence) <= MAX_BAD_SEQUENCE_TOKENS:
            raise InvalidRequest(name, f"sequences of 1 to {MAX_BAD_SEQUENCE_TOKENS} tokens", len(sequence))
        for token_id in sequence:
            if not 0 <= token_id < vocab_size:
                raise InvalidRequest(name, f"token ids from 0 to {vocab_size - 1} (the vocabulary)", token_id)


def _validate_beside_constraint(sampling: Sampling) -> None:
    """What says where an output ends or what is in it, and so contradicts a constraint."""
    for name in ("ignore_eos", "allowed_token_ids"):
        if getattr(sampling, name):
            raise InvalidRequest(name, message=f"{name} cannot be combined with a constraint on the output")


def _validate_ids(sampling: Sampling, vocab_size: int, called: Mapping[str, str]) -> None:
    if len(sampling.logit_bias) > MAX_LOGIT_BIAS:
        raise InvalidRequest("logit_bias", f"at most {MAX_LOGIT_BIAS} entries", len(sampling.logit_bias))
    if len(sampling.stop_token_ids) > MAX_STOP_TOKEN_IDS:
        raise InvalidRequest(
            "stop_token_ids", f"at most {MAX_STOP_TOKEN_IDS} ids", len(sampling.stop_token_ids)
        )
    for bias in sampling.logit_bias.values():
        if not -100 <= bias <= 100:
            raise InvalidRequest("logit_bias", "values from -100 to 100", bias)
    for name in ("logit_bias", "stop_token_ids", "allowed_token_ids", "logprob_token_ids"):
        for token_id in getattr(sampling, name):
            if not 0 <= token_id < vocab_size:
                raise InvalidRequest(
                    called.get(name, name), f"token ids from 0 to {vocab_size - 1} (the vocabulary)", token_id
                )


def resolve(
    sampling: Sampling, *defaults: Sampling, seed: int, max_tokens: int, vocab_size: int = 0
) -> Sampling:
    """The parameters with every default filled in: the request's value, else the first default that has one (the
    operator's, then the model's), else the contract's.

    seed and max_tokens are used where the request has none. vocab_size: what ALL_TOKENS stands for.
    """
    changes: dict[str, object] = {}
    for name in _DEFAULTED:
        if getattr(sampling, name) is None:
            value = next((found for d in defaults if (found := getattr(d, name)) is not None), None)
            if value is not None:
                changes[name] = value
    temperature = changes.get("temperature", sampling.temperature)
    if isinstance(temperature, float | int) and 0 < temperature < MIN_TEMPERATURE:
        changes["temperature"] = MIN_TEMPERATURE
    for name in ("num_logprobs", "num_prompt_logprobs"):
        if getattr(sampling, name) == ALL_TOKENS:
            changes[name] = vocab_size
    if sampling.seed is None:
        changes["seed"] = seed
    if sampling.max_tokens is None:
        changes["max_tokens"] = max_tokens
    return dataclasses.replace(sampling, **changes)  # type: ignore[arg-type]
