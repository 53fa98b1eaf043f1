"""What a client asked for: inputs and what is to be made of them, free of any dialect. Checks ranges."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quire_gateway.models import ModelTask, ServedModel
from quire_gateway.pooling.params import PoolingTask
from quire_gateway.requests import MAX_CACHE_SALT_CHARS, ChatPrompt, TextPrompt, TokenPrompt
from quire_servicekit.errors import InvalidRequest

#: Inputs of one call, as in OpenAI's API.
MAX_INPUTS = 2048

Vector = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class TextPair:
    """Two texts that the model reads as one sequence."""

    first: str
    second: str


PoolingInput = TextPrompt | TokenPrompt | ChatPrompt | TextPair


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolingCall:
    """One call. name_of: what the client calls input number i, for errors. wants: what the model must be able to.

    truncate_tokens: longer inputs are cut to that many tokens, 0: to the model's limit; None: they are refused.
    """

    inputs: tuple[PoolingInput, ...]
    wants: ModelTask
    name_of: Callable[[int], str]
    model: str = ""
    task: PoolingTask = PoolingTask.EMBED
    num_dimensions: int | None = None
    dimensions_name: str = "dimensions"
    normalize: bool | None = None
    truncate_tokens: int | None = None
    truncate_name: str = "truncate_prompt_tokens"
    priority: int = 0
    cache_salt: str = ""


@dataclass(frozen=True, slots=True)
class PoolingResult:
    """The vectors, in the order of the inputs, and how many tokens each input had."""

    model: ServedModel
    vectors: list[Vector]
    num_tokens: list[int]

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of all inputs."""
        return sum(self.num_tokens)


def validate_call(call: PoolingCall, model: ServedModel) -> None:
    """Raise InvalidRequest for the first value that is out of its limit, under the client's name for it."""
    if not 1 <= len(call.inputs) <= MAX_INPUTS:
        name = call.name_of(0).partition("[")[0]
        raise InvalidRequest(name, f"1 to {MAX_INPUTS} inputs", len(call.inputs))
    for index, item in enumerate(call.inputs):
        if isinstance(item, TokenPrompt):
            for token_id in item.token_ids:
                if not 0 <= token_id < model.vocab_size:
                    limit = f"token ids from 0 to {model.vocab_size - 1}"
                    raise InvalidRequest(call.name_of(index), limit, token_id)
    size = model.embedding_size
    if call.num_dimensions is not None and not 1 <= call.num_dimensions <= size:
        raise InvalidRequest(call.dimensions_name, f"from 1 to {size}", call.num_dimensions)
    longest = model.max_model_len
    if call.truncate_tokens is not None and not 0 <= call.truncate_tokens <= longest:
        raise InvalidRequest(call.truncate_name, f"from 0 to {longest}", call.truncate_tokens)
    if not -(2**31) <= call.priority < 2**31:
        raise InvalidRequest("priority", "a 32-bit integer", call.priority)
    if len(call.cache_salt) > MAX_CACHE_SALT_CHARS:
        raise InvalidRequest("cache_salt", f"at most {MAX_CACHE_SALT_CHARS} characters", len(call.cache_salt))
