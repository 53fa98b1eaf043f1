"""Texts to token ids for encoders: pairs read as one sequence, and cutting what is too long.

The special tokens stay whole when a text is cut: they are put around what is left of it. Knows no gRPC.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from tokenizers import Tokenizer

from quire_servicekit.errors import InvalidRequest


class EncodedPair(NamedTuple):
    """Token ids, and the index of the first one that belongs to the second text (their number without one)."""

    token_ids: list[int]
    second_text_start: int


def encode_pair(
    backend: Tokenizer,
    text: str,
    second: str | None,
    *,
    add_special_tokens: bool = True,
    max_tokens: int | None = None,
) -> EncodedPair:
    """One text, or two as one sequence. max_tokens: longer ones are cut at their end, of a pair the longer one first.

    Raises InvalidRequest where max_tokens leaves no room beside the special tokens.
    """
    texts = [text] if second is None else [text, second]
    # Not the library's `encode`: it keeps the interpreter lock.
    parts = backend.encode_batch_fast(texts, add_special_tokens=False)
    if max_tokens is not None:
        num_special = backend.num_special_tokens_to_add(second is not None) if add_special_tokens else 0
        room = max_tokens - num_special
        if room < len(parts):
            raise InvalidRequest("max_tokens", f"at least {num_special + len(parts)}", max_tokens)
        for part, length in zip(parts, _lengths([len(part.ids) for part in parts], room), strict=True):
            part.truncate(length)
    whole = backend.post_process(parts[0], parts[1] if second is not None else None, add_special_tokens)
    return EncodedPair(list(whole.ids), len(whole.ids) if second is None else _second_start(whole))


def _lengths(lengths: list[int], room: int) -> list[int]:
    """What is left of each text: tokens are taken from the longer one until all fit."""
    if len(lengths) == 1:
        return [min(lengths[0], room)]
    first, second = lengths
    if first + second > room:
        shorter = min(first, second, room // 2)
        first, second = (room - shorter, shorter) if first >= second else (shorter, room - shorter)
    return [first, second]


def _second_start(whole: Any) -> int:
    """By the token types where the tokenizer has them, else the first token that comes from the second text."""
    types = list(whole.type_ids)
    if 1 in types:
        return types.index(1)
    sequences = list(whole.sequence_ids)
    return sequences.index(1) if 1 in sequences else len(types)
