"""How decoders are classified, and the bytes of tokens."""

from __future__ import annotations

import pytest
from tokenizers import decoders

from quire_tokenizer.vocabulary import Scheme, _byte_level_bytes, _byte_level_table, decoding_scheme

REPLACE = {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}
FALLBACK, FUSE = {"type": "ByteFallback"}, {"type": "Fuse"}
STRIP = {"type": "Strip", "content": " ", "start": 1, "stop": 0}


@pytest.mark.parametrize(
    ("decoder", "expected"),
    [
        (None, (Scheme.GENERIC, 0)),
        ({"type": "ByteLevel"}, (Scheme.BYTE_LEVEL, 0)),
        ({"type": "Sequence", "decoders": [{"type": "ByteLevel"}]}, (Scheme.BYTE_LEVEL, 0)),
        ({"type": "Sequence", "decoders": [REPLACE, FALLBACK, FUSE]}, (Scheme.METASPACE_BYTES, 0)),
        ({"type": "Sequence", "decoders": [REPLACE, FALLBACK, FUSE, STRIP]}, (Scheme.METASPACE_BYTES, 1)),
        (
            {"type": "Sequence", "decoders": [REPLACE, FALLBACK, FUSE, {**STRIP, "stop": 1}]},
            (Scheme.GENERIC, 0),
        ),
        (
            {"type": "Sequence", "decoders": [{**REPLACE, "content": "_"}, FALLBACK, FUSE]},
            (Scheme.GENERIC, 0),
        ),
        ({"type": "Sequence", "decoders": [REPLACE, FUSE]}, (Scheme.GENERIC, 0)),
        ({"type": "WordPiece", "prefix": "##", "cleanup": True}, (Scheme.GENERIC, 0)),
    ],
)
def test_decoders_are_classified(decoder, expected):
    """Only decoders whose every step is known are treated as bytes; all others go the generic way."""
    assert decoding_scheme(decoder) == expected


def test_bytes_of_byte_level_tokens_are_the_decoders_own(smollm2):
    """A token's bytes, decoded, are what the library's decoder makes of it."""
    decoder = decoders.ByteLevel()
    vocabulary = smollm2.vocabulary
    for token, piece in zip(vocabulary.tokens[::97], vocabulary.token_bytes[::97], strict=True):
        assert piece.decode(errors="replace") == decoder.decode([token])


def test_printable_text_can_be_spelled_byte_by_byte(smollm2):
    """The vocabulary has each printable ASCII character and each continuation byte alone."""
    single = {piece[0] for piece in smollm2.vocabulary.token_bytes if len(piece) == 1}
    assert single >= set(range(0x80, 0xC0)) | set(range(0x20, 0x7F))


def test_added_token_outside_the_alphabet_stands_for_its_text():
    """A character that no byte stands for keeps the token out of the byte table."""
    table = _byte_level_table()
    assert _byte_level_bytes("a b", table) == b"a b"
    assert _byte_level_bytes("\u4e2d", table) == "\u4e2d".encode()
    assert _byte_level_bytes("\u0120caf\u00c3\u00a9", table) == " caf\u00e9".encode()


def test_bytes_of_sentencepiece_tokens(sentencepiece):
    """U+2581 is a space and <0xNN> is a byte."""
    vocabulary = sentencepiece.vocabulary
    assert vocabulary.token_bytes[vocabulary.tokens.index("\u2581ab")] == b" ab"
    assert vocabulary.token_bytes[vocabulary.tokens.index("<0xE4>")] == b"\xe4"


def test_bytes_of_other_tokens_are_their_text_alone(wordpiece):
    """Where only the decoder knows, a token has the text that it has by itself; rows without a token have none."""
    assert wordpiece.vocabulary.token_bytes[2] == b"play"
    assert wordpiece.vocabulary.token_bytes[-1] == b""
    assert wordpiece.vocabulary.token(None) == "" and wordpiece.vocabulary.token(10**6) == ""
