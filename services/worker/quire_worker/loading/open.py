"""Opens whatever a model's path names, and says what clients must know of it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from quire_worker.loading.source import ModelFiles

# generation_config keys that are sampling defaults, and the contract's names for them.
_SAMPLING_DEFAULTS: Final = {
    "temperature": "temperature", "top_p": "top_p", "top_k": "top_k", "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
}  # fmt: skip


def open_model(path: str) -> ModelFiles:
    """Open a .gguf file or a Hugging Face folder; nothing is read of the weights yet.

    FileNotFoundError: no such files. ValueError: files this worker does not understand.
    """
    place = Path(path).expanduser()
    if not place.exists():
        raise FileNotFoundError(f"no model at {place}")
    if place.is_file():
        if place.suffix != ".gguf":
            raise ValueError(f"{place} is neither a .gguf file nor a folder")
        from quire_worker.loading.gguf_model import open_gguf

        return open_gguf(place)
    from quire_worker.loading.safetensors_model import open_folder

    return open_folder(place)


def architecture(files: ModelFiles) -> str:
    """The Hugging Face architecture name. ValueError if the config has none."""
    names = files.config.get("architectures") or []
    if len(names) != 1:
        raise ValueError(f"{files.path}: config.json must name one architecture, has {names}")
    return str(names[0])


def eos_token_ids(files: ModelFiles) -> list[int]:
    """Every id that ends a sequence: those of generation_config and of config, each once, in that order."""
    ids: list[int] = []
    for config in (files.generation_config, files.config):
        value = config.get("eos_token_id")
        ids += [] if value is None else [value] if isinstance(value, int) else list(value)
    return list(dict.fromkeys(ids))


def default_sampling(files: ModelFiles) -> dict[str, float | int]:
    """Sampling defaults that the model's generation_config names, under the contract's names."""
    config: Mapping[str, Any] = files.generation_config
    return {
        ours: config[theirs] for theirs, ours in _SAMPLING_DEFAULTS.items() if config.get(theirs) is not None
    }


def fingerprint(files: ModelFiles, vocab_size: int) -> str:
    """SHA-256 over vocabulary size, file names and sizes: two workers of one model agree."""
    digest = hashlib.sha256(str(vocab_size).encode())
    for name, size in sorted(files.identity):
        digest.update(f"\0{name}\0{size}".encode())
    return digest.hexdigest()


def served_name(files: ModelFiles) -> str:
    """A name for clients when none was given: the file's without its ending, or the folder's."""
    place = Path(files.path)
    return place.stem if place.suffix == ".gguf" else place.resolve().name
