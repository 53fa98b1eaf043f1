"""A tokenizer from a folder in the Hugging Face layout.

`tokenizer.json` is required and says how text becomes tokens; the files beside it are optional and say which tokens
are special to the model, which of them end a generation, and how a conversation is written.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from tokenizers import AddedToken, Tokenizer

from quire_tokenizer.errors import ModelFormatError
from quire_tokenizer.source import DEFAULT_TEMPLATE, TokenizerSource
from quire_tokenizer.vocabulary import SpecialTokens

TOKENIZER_FILE: Final = "tokenizer.json"
TEMPLATE_FILE: Final = "chat_template.jinja"
TEMPLATE_FOLDER: Final = "additional_chat_templates"


def load_folder(folder: Path) -> TokenizerSource:
    """Return the tokenizer that `folder` describes; raise ModelFormatError, naming the file that is at fault."""
    path = folder / TOKENIZER_FILE
    if not path.is_file():
        raise ModelFormatError(f"{folder} has no {TOKENIZER_FILE}")
    data = path.read_bytes()
    backend = _backend(path, data)
    tokenizer_config = _json_object(folder / "tokenizer_config.json")
    config = _json_object(folder / "config.json")
    _add_missing_tokens(backend, tokenizer_config)
    return TokenizerSource(
        backend=backend,
        special=_special_tokens(folder, backend, tokenizer_config, config),
        merges=_merges(data),
        num_ids=int(config.get("vocab_size") or 0),
        chat_templates=_chat_templates(folder, tokenizer_config),
    )


def _backend(path: Path, data: bytes) -> Tokenizer:
    try:
        backend = Tokenizer.from_buffer(data)
    except Exception as error:  # the library raises plain Exception
        raise ModelFormatError(f"{path} is not a readable tokenizer: {error}") from error
    # Left-over training settings would silently cut or pad what clients send.
    backend.no_truncation()
    backend.no_padding()
    return backend


def _json_object(path: Path) -> dict[str, Any]:
    """The object in `path`, empty where there is no such file."""
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_bytes())
    except ValueError as error:
        raise ModelFormatError(f"{path} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelFormatError(f"{path} holds no JSON object")
    return value


def _merges(data: bytes) -> list[str]:
    """The merges of a BPE model, whose file form is either "a b" or ["a", "b"]."""
    merges = json.loads(data)["model"].get("merges") or []
    return [merge if isinstance(merge, str) else " ".join(merge) for merge in merges]


def _add_missing_tokens(backend: Tokenizer, tokenizer_config: dict[str, Any]) -> None:
    """Add tokens that only tokenizer_config.json lists, as transformers does; refuse one that gets another id."""
    listed = {int(key): value for key, value in tokenizer_config.get("added_tokens_decoder", {}).items()}
    present = backend.get_added_tokens_decoder()
    for token_id, entry in sorted(listed.items()):
        if token_id in present:
            continue
        options = {
            key: bool(entry.get(key, False)) for key in ("lstrip", "rstrip", "single_word", "normalized")
        }
        token = AddedToken(entry["content"], special=bool(entry.get("special", False)), **options)
        # The token's own flag does not make it special to the library: only this call does.
        if token.special:
            backend.add_special_tokens([token])
        else:
            backend.add_tokens([token])
        if backend.token_to_id(token.content) != token_id:
            raise ModelFormatError(
                f"tokenizer_config.json gives {token.content!r} the id {token_id}, "
                f"but in {TOKENIZER_FILE} it is {backend.token_to_id(token.content)}"
            )


def _special_tokens(
    folder: Path, backend: Tokenizer, tokenizer_config: dict[str, Any], config: dict[str, Any]
) -> SpecialTokens:
    generation = _json_object(folder / "generation_config.json")
    names = {**_json_object(folder / "special_tokens_map.json"), **tokenizer_config}

    def named(key: str) -> int | None:
        value = names.get(key)
        content = value.get("content") if isinstance(value, dict) else value
        return backend.token_to_id(content) if isinstance(content, str) else None

    bos_id = named("bos_token")
    if bos_id is None:
        bos_id = next(iter(_ids(generation.get("bos_token_id", config.get("bos_token_id")))), None)
    # Chat models often end on other tokens than the tokenizer's own: all of them end a generation.
    eos_ids = [] if (eos_id := named("eos_token")) is None else [eos_id]
    eos_ids += _ids(generation.get("eos_token_id", config.get("eos_token_id")))
    return SpecialTokens(
        bos_id=bos_id,
        eos_ids=tuple(dict.fromkeys(eos_ids)),
        unk_id=named("unk_token"),
        pad_id=named("pad_token"),
    )


def _ids(value: Any) -> list[int]:
    """An id field may hold one id, a list of them, or null."""
    if value is None:
        return []
    return [int(token_id) for token_id in (value if isinstance(value, list) else [value])]


def _chat_templates(folder: Path, tokenizer_config: dict[str, Any]) -> dict[str, str]:
    inline = tokenizer_config.get("chat_template")
    if isinstance(inline, str):
        inline = [{"name": DEFAULT_TEMPLATE, "template": inline}]
    templates = {entry["name"]: entry["template"] for entry in inline or []}
    # A file beside the configuration wins over the text inside it: newer savers write only the file.
    for path in sorted((folder / TEMPLATE_FOLDER).glob("*.jinja")):
        templates[path.stem] = path.read_text(encoding="utf-8")
    if (folder / TEMPLATE_FILE).is_file():
        templates[DEFAULT_TEMPLATE] = (folder / TEMPLATE_FILE).read_text(encoding="utf-8")
    return templates
