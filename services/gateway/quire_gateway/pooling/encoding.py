"""Inputs of a pooled call to token ids, in as few calls to the tokenizer as its limits allow.

One job; a refusal names the client's own input.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from quire_gateway.models import ServedModel
from quire_gateway.pooling.call import PoolingCall, PoolingInput, TextPair
from quire_gateway.prompts import Tokenizer as PromptTokenizer
from quire_gateway.requests import ChatPrompt, TextPrompt, TokenPrompt
from quire_servicekit.errors import InvalidRequest, Unsupported

#: Texts of one call to the tokenizer; its own limit is higher.
MAX_TEXTS = 512
_INDEX = re.compile(r"\[(\d+)\]")


class Tokenizer(PromptTokenizer, Protocol):
    """What this needs of the tokenizer client."""

    async def encode_pairs(
        self,
        texts: Sequence[str],
        seconds: Sequence[str],
        *,
        add_special_tokens: bool = True,
        max_tokens: int | None = None,
    ) -> list[tuple[list[int], int]]:
        """Token ids of each text, or pair of texts, and where its second text begins. seconds: empty for texts."""


@dataclass(frozen=True, slots=True)
class EncodedInput:
    """An input's tokens; second_text_start: of a pair, index of the second text's first token."""

    token_ids: list[int]
    second_text_start: int | None = None


async def encode_inputs(tokenizer: Tokenizer, call: PoolingCall, model: ServedModel) -> list[EncodedInput]:
    """The tokens of each input, cut if the call wants that. Raises InvalidRequest, naming the input, for one that is
    empty, too long or refused by the tokenizer."""
    limit = None
    if call.truncate_tokens is not None:
        limit = call.truncate_tokens or model.max_model_len
    encoded: list[EncodedInput] = []
    while len(encoded) < len(call.inputs):
        start = len(encoded)
        batch = _run_of_one_kind(call.inputs, start)
        try:
            encoded += await _encode(tokenizer, batch, limit)
        except InvalidRequest as error:
            # The tokenizer names its own field, with the index within this batch.
            found = _INDEX.search(error.field)
            name = call.name_of(start + (int(found[1]) if found else 0))
            raise InvalidRequest(
                name, error.limit, error.value, message="" if error.limit else error.message, code=error.code
            ) from error
    for index, item in enumerate(encoded):
        _check_length(call.name_of(index), len(item.token_ids), model)
    return encoded


def _run_of_one_kind(inputs: Sequence[PoolingInput], start: int) -> list[PoolingInput]:
    """The next inputs that go in one call: texts or pairs in a row, else a single one."""
    kind, end = type(inputs[start]), start + 1
    if kind in (TextPrompt, TextPair):
        while end < len(inputs) and end - start < MAX_TEXTS and _is_alike(inputs[start], inputs[end]):
            end += 1
    return list(inputs[start:end])


def _is_alike(one: PoolingInput, other: PoolingInput) -> bool:
    if isinstance(one, TextPrompt) and isinstance(other, TextPrompt):
        return one.add_special_tokens == other.add_special_tokens
    return isinstance(one, TextPair) and isinstance(other, TextPair)


async def _encode(tokenizer: Tokenizer, batch: list[PoolingInput], limit: int | None) -> list[EncodedInput]:
    first = batch[0]
    if isinstance(first, TokenPrompt):
        return [EncodedInput(list(first.token_ids[:limit]))]
    if isinstance(first, ChatPrompt):
        info = tokenizer.info
        if info is not None and not info.has_chat_template:
            raise Unsupported("messages", message="this model has no chat template: use plain input")
        return [EncodedInput((await tokenizer.render_chat(first))[1][:limit])]
    if isinstance(first, TextPair):
        pairs = [item for item in batch if isinstance(item, TextPair)]
        found = await tokenizer.encode_pairs(
            [pair.first for pair in pairs], [pair.second for pair in pairs], max_tokens=limit
        )
        return [EncodedInput(token_ids, start) for token_ids, start in found]
    texts = [item.text for item in batch if isinstance(item, TextPrompt)]
    special = first.add_special_tokens
    if limit is None:
        return [EncodedInput(ids) for ids in await tokenizer.encode(texts, add_special_tokens=special)]
    cut = await tokenizer.encode_pairs(texts, (), add_special_tokens=special, max_tokens=limit)
    return [EncodedInput(token_ids) for token_ids, _ in cut]


def _check_length(name: str, num_tokens: int, model: ServedModel) -> None:
    if num_tokens == 0:
        raise InvalidRequest(name, "at least one token", 0)
    if num_tokens > model.max_model_len:
        raise InvalidRequest(
            name,
            model.max_model_len,
            num_tokens,
            message=f"{name}: this model's maximum context length is {model.max_model_len} tokens, got {num_tokens}. "
            f"Shorten it, or ask for it to be truncated.",
            code="context_length_exceeded",
        )
