"""The tokenizer's vocabulary as the compiler wants it: the bytes of every id, and which of them are special."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import cast

from llguidance import LLTokenizer, TokenizerWrapper


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """token_bytes: per id; an id without bytes is never permitted. fingerprint: of the tokenizer it came from."""

    token_bytes: Sequence[bytes] = field(repr=False)
    special_token_ids: frozenset[int]
    fingerprint: str = ""

    def special_ids_by_text(self) -> dict[str, int]:
        """The special tokens by their literal text."""
        texts = {}
        for token_id in self.special_token_ids:
            if token_id < len(self.token_bytes) and self.token_bytes[token_id]:
                texts[self.token_bytes[token_id].decode("utf-8", "replace")] = token_id
        return texts


class _Bytes:
    """What the compiler reads of a tokenizer."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, tokens: list[bytes], special_token_ids: list[int], eos_token_id: int) -> None:
        self.tokens = tokens
        self.special_token_ids = special_token_ids
        self.eos_token_id = eos_token_id

    def __call__(self, text: bytes | str) -> list[int]:
        """Only forced texts would be tokenised, and no grammar of ours forces any."""
        return []


def make_tokenizer(vocabulary: Vocabulary, vocab_size: int, eos_token_ids: Collection[int]) -> LLTokenizer:
    """The compiler's tables; takes a few tenths of a second and much memory bandwidth: not for the event loop.

    vocab_size: the model's. It may be padded beyond the tokenizer's, or have fewer ids. Raises ValueError without an
    end-of-sequence token: nothing could then say that a text is complete.
    """
    ending = [token_id for token_id in eos_token_ids if token_id < vocab_size]
    if not ending:
        raise ValueError("the model has no end-of-sequence token")
    tokens = list(vocabulary.token_bytes[:vocab_size])
    tokens += [b""] * (vocab_size - len(tokens))
    special = sorted({*vocabulary.special_token_ids, *ending})
    tables = _Bytes(tokens, [token_id for token_id in special if token_id < vocab_size], ending[0])
    # It asks for these attributes, not for the class.
    return LLTokenizer(cast(TokenizerWrapper, tables), n_vocab=vocab_size, eos_token=ending)
