"""From a path to a tokenizer that is ready to serve: picks the format, tabulates the vocabulary, takes the fingerprint.

Which model a name stands for is not decided here: services get a path.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from tokenizers import Tokenizer

from quire_tokenizer.errors import ModelFormatError
from quire_tokenizer.fingerprint import fingerprint
from quire_tokenizer.gguf_vocab import load_gguf
from quire_tokenizer.hf_vocab import load_folder
from quire_tokenizer.source import DEFAULT_TEMPLATE, TokenizerSource
from quire_tokenizer.vocabulary import Vocabulary, build_vocabulary


@dataclass(frozen=True, slots=True)
class LoadedTokenizer:
    """Everything the service knows about its model. Immutable, so that threads and streams share it."""

    backend: Tokenizer = field(repr=False)
    vocabulary: Vocabulary
    chat_templates: dict[str, str] = field(repr=False)
    fingerprint: str


def load_tokenizer(path: Path) -> LoadedTokenizer:
    """Load the tokenizer of the model at `path`: a `.gguf` file, or a folder with a tokenizer.json or one GGUF file.

    Raises ModelFormatError, naming the file and what is wrong with it.
    """
    return ready(_source(path))


def ready(source: TokenizerSource) -> LoadedTokenizer:
    """Tabulate `source` and take its fingerprint."""
    vocabulary = build_vocabulary(source.backend, source.special, source.num_ids)
    template = source.chat_templates.get(DEFAULT_TEMPLATE, "")
    return LoadedTokenizer(
        backend=source.backend,
        vocabulary=vocabulary,
        chat_templates=source.chat_templates,
        fingerprint=fingerprint(source.backend, vocabulary, source.merges, template),
    )


def _source(path: Path) -> TokenizerSource:
    if path.is_file():
        return load_gguf(path)
    if not path.is_dir():
        raise ModelFormatError(f"there is no model at {path}")
    if (path / "tokenizer.json").is_file():
        return load_folder(path)
    ggufs = sorted(path.glob("*.gguf"))
    if len(ggufs) == 1:
        return load_gguf(ggufs[0])
    raise ModelFormatError(
        f"{path} has no tokenizer.json and {len(ggufs)} GGUF files, where exactly one would do"
    )
