"""What a tokenizer's ids stand for: the bytes of each token, and which ids are special.

The bytes are the source of every text the suite shows (detokenisation, the token strings of logprobs) and of the
grammar masks. They are known for the two byte-exact decoding schemes that nearly all generative models use; for any
other decoder (`Scheme.GENERIC`) a token's text depends on its neighbours, and its bytes are those it has alone.
"""

from __future__ import annotations

import enum
import json
import re
from dataclasses import dataclass, field
from typing import Any, Final

from tokenizers import Tokenizer, pre_tokenizers

METASPACE: Final = "\u2581"
BYTE_TOKEN: Final = re.compile(r"<0x([0-9A-Fa-f]{2})>")
# Stands for a character that no byte maps to; it has no Latin-1 form, so encoding it fails as intended.
_UNMAPPED: Final = "\uffff"


class Scheme(enum.Enum):
    """How token strings become text."""

    BYTE_LEVEL = "byte_level"
    """Each character of a token stands for one byte (GPT-2); the text is the bytes' UTF-8."""
    METASPACE_BYTES = "metaspace_bytes"
    """A token is UTF-8 text with U+2581 for a space, or one byte written as <0xNN> (SentencePiece)."""
    GENERIC = "generic"
    """Anything else (WordPiece, ...): only the tokenizer's own decoder knows."""


@dataclass(frozen=True, slots=True)
class SpecialTokens:
    """The ids that mean something to the suite. `eos_ids` holds every id that ends a generation, the main one first."""

    bos_id: int | None = None
    eos_ids: tuple[int, ...] = ()
    unk_id: int | None = None
    pad_id: int | None = None


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """All tokens by id.

    `tokens` and `token_bytes` have one entry for each id below the highest one; an id that stands for nothing has an
    empty one. `special_ids` are left out of text by skip_special_tokens; `added_ids` are matched in a text as a whole.
    `num_leading_spaces_stripped`: how many spaces at the very start of a text the decoder drops (SentencePiece: 1).
    """

    scheme: Scheme
    tokens: list[str] = field(repr=False)
    token_bytes: list[bytes] = field(repr=False)
    special_ids: frozenset[int]
    added_ids: frozenset[int] = field(repr=False)
    special: SpecialTokens = field(default_factory=SpecialTokens)
    num_leading_spaces_stripped: int = 0

    @property
    def size(self) -> int:
        """Number of ids, padding rows included."""
        return len(self.tokens)

    @property
    def num_named(self) -> int:
        """Ids up to the last one that stands for something: without the padding rows at the end."""
        return next((size for size in range(len(self.tokens), 0, -1) if self.tokens[size - 1]), 0)

    def token(self, token_id: int | None) -> str:
        """The token's string, empty for None and for an id that stands for nothing."""
        return self.tokens[token_id] if token_id is not None and token_id < len(self.tokens) else ""


def build_vocabulary(backend: Tokenizer, special: SpecialTokens, num_ids: int = 0) -> Vocabulary:
    """Tabulate `backend`. The tables are built once, since every streamed token is looked up in them.

    `num_ids`: rows of the model's output projection, if known. It is often padded beyond the named tokens; such an id
    can be sampled, and stands for no text.
    """
    scheme, num_stripped = decoding_scheme(
        json.loads(backend.decoder.__getstate__()) if backend.decoder else None
    )
    ids = backend.get_vocab(with_added_tokens=True)
    tokens = [""] * max(num_ids, max(ids.values(), default=-1) + 1)
    for token, token_id in ids.items():
        tokens[token_id] = token
    added = backend.get_added_tokens_decoder()
    for token_id, added_token in added.items():
        tokens[token_id] = added_token.content
    return Vocabulary(
        scheme=scheme,
        tokens=tokens,
        token_bytes=_token_bytes(backend, scheme, tokens),
        special_ids=frozenset(token_id for token_id, token in added.items() if token.special),
        added_ids=frozenset(added),
        special=special,
        num_leading_spaces_stripped=num_stripped,
    )


def decoding_scheme(decoder: dict[str, Any] | None) -> tuple[Scheme, int]:
    """Classify a decoder by its JSON description; return the scheme and the number of leading spaces it strips."""
    if decoder is None:
        return Scheme.GENERIC, 0
    if decoder["type"] == "ByteLevel":
        return Scheme.BYTE_LEVEL, 0
    if decoder["type"] != "Sequence":
        return Scheme.GENERIC, 0
    steps = list(decoder["decoders"])
    num_stripped = 0
    if steps and steps[-1]["type"] == "Strip":
        strip = steps.pop()
        if strip["content"] != " " or strip["stop"] != 0:
            return Scheme.GENERIC, 0
        num_stripped = int(strip["start"])
    if [step["type"] for step in steps] == ["ByteLevel"] and not num_stripped:
        return Scheme.BYTE_LEVEL, 0
    if [step["type"] for step in steps] != ["Replace", "ByteFallback", "Fuse"]:
        return Scheme.GENERIC, 0
    if steps[0]["pattern"] != {"String": METASPACE} or steps[0]["content"] != " ":
        return Scheme.GENERIC, 0
    return Scheme.METASPACE_BYTES, num_stripped


def _token_bytes(backend: Tokenizer, scheme: Scheme, tokens: list[str]) -> list[bytes]:
    if scheme is Scheme.BYTE_LEVEL:
        table = _byte_level_table()
        return [_byte_level_bytes(token, table) for token in tokens]
    if scheme is Scheme.METASPACE_BYTES:
        return [_metaspace_bytes(token) for token in tokens]
    return [
        backend.decode([token_id], skip_special_tokens=False).encode() if token else b""
        for token_id, token in enumerate(tokens)
    ]


def _byte_level_table() -> dict[int, str]:
    """Translate GPT-2's printable stand-ins to the Latin-1 character of their byte.

    Printable bytes stand for themselves; the others, in order, are written as the characters from U+0100 on.
    """
    alphabet = frozenset(pre_tokenizers.ByteLevel.alphabet())
    table: dict[int, str] = {}
    next_stand_in = 0x100
    for byte in range(256):
        if chr(byte) in alphabet:
            table[byte] = chr(byte)
        else:
            table[byte] = _UNMAPPED
            table[next_stand_in] = chr(byte)
            next_stand_in += 1
    return table


def _byte_level_bytes(token: str, table: dict[int, str]) -> bytes:
    try:
        return token.translate(table).encode("latin-1")
    except UnicodeEncodeError:
        # An added token may hold characters outside the alphabet (a space, say); it then stands for its own text.
        return token.encode()


def _metaspace_bytes(token: str) -> bytes:
    byte = BYTE_TOKEN.fullmatch(token)
    return bytes([int(byte[1], 16)]) if byte else token.replace(METASPACE, " ").encode()
