"""Tokenizers from a folder in the Hugging Face layout, and the fingerprint that both formats share."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from quire_tokenizer.errors import ModelFormatError
from quire_tokenizer.loading import load_tokenizer


@pytest.fixture
def folder(tmp_path, smollm2) -> Path:
    """SmolLM2's tokenizer saved as a folder."""
    (tmp_path / "tokenizer.json").write_text(smollm2.backend.to_str())
    write(tmp_path, "tokenizer_config.json", {
        "bos_token": "<|im_start|>",
        "eos_token": {"content": "<|im_end|>"},
        "unk_token": "<|endoftext|>",
        "pad_token": None,
        "chat_template": smollm2.chat_templates["default"],
    })  # fmt: skip
    return tmp_path


def write(folder: Path, name: str, value: Any) -> None:
    """Write `value` as a JSON file into `folder`."""
    (folder / name).write_text(json.dumps(value))


def test_folder_and_gguf_of_one_model_agree(folder, smollm2, golden):
    """The same model in both formats gives the same ids, specials and fingerprint."""
    tokenizer = load_tokenizer(folder)
    assert tokenizer.fingerprint == smollm2.fingerprint
    assert tokenizer.vocabulary.special_ids == smollm2.vocabulary.special_ids
    assert tokenizer.vocabulary.token_bytes == smollm2.vocabulary.token_bytes
    assert (tokenizer.vocabulary.special.bos_id, tokenizer.vocabulary.special.unk_id) == (1, 0)
    for item in golden:
        assert tokenizer.backend.encode(item["prompt_text"]).ids == item["prompt_ids"]


def test_fingerprint_is_the_same_in_every_process(smollm2):
    """A change of this value makes services of two versions refuse each other, so it shows in review."""
    assert smollm2.fingerprint == "a2018320c1b3d963ffb51a6e39cb4124576eab50a33c85bb8a037bf84c699dbe"


@pytest.mark.parametrize(
    "change",
    ["pre-tokenizer", "merge", "special", "template", "eos"],
)
def test_fingerprint_sees_every_difference_that_matters(folder, smollm2, change):
    """Another pre-tokenizer, merge, special token, template or end token is another fingerprint."""
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    if change == "pre-tokenizer":
        tokenizer["pre_tokenizer"] = tokenizer["pre_tokenizer"]["pretokenizers"][1]
    elif change == "merge":
        tokenizer["model"]["merges"].pop()
    elif change == "special":
        tokenizer["added_tokens"][3]["special"] = False
    write(folder, "tokenizer.json", tokenizer)
    if change == "template":
        (folder / "chat_template.jinja").write_text("{{ messages }}")
    elif change == "eos":
        write(folder, "generation_config.json", {"eos_token_id": [2, 0]})
    assert load_tokenizer(folder).fingerprint != smollm2.fingerprint


def test_padding_rows_do_not_change_the_fingerprint(folder, smollm2):
    """A model whose output projection has rows without a token has the same tokenizer; such an id is no text."""
    write(folder, "config.json", {"vocab_size": 49200})
    tokenizer = load_tokenizer(folder)
    assert tokenizer.vocabulary.size == 49200
    assert tokenizer.vocabulary.token_bytes[49199] == b""
    assert tokenizer.fingerprint == smollm2.fingerprint


def test_all_end_tokens_of_the_generation_config_count(folder):
    """The tokenizer's own end token comes first, then those that generation_config lists, each once."""
    write(folder, "generation_config.json", {"eos_token_id": [0, 2], "bos_token_id": 5})
    special = load_tokenizer(folder).vocabulary.special
    assert special.eos_ids == (2, 0)
    assert special.bos_id == 1


def test_ids_of_config_are_used_where_nothing_else_names_them(folder):
    """Without a tokenizer_config.json the ids come from generation_config.json, then config.json."""
    (folder / "tokenizer_config.json").unlink()
    write(folder, "config.json", {"bos_token_id": 1, "eos_token_id": 2})
    special = load_tokenizer(folder).vocabulary.special
    assert (special.bos_id, special.eos_ids) == (1, (2,))


def test_template_file_wins_over_the_text_in_the_configuration(folder):
    """chat_template.jinja is the newer form; named templates lie in a folder beside it."""
    (folder / "chat_template.jinja").write_text("from the file")
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text("for tools")
    assert load_tokenizer(folder).chat_templates == {"default": "from the file", "tool_use": "for tools"}


def test_list_of_named_templates_is_read(folder):
    """The older form of several templates is a list in tokenizer_config.json."""
    named = [{"name": "default", "template": "D"}, {"name": "tool_use", "template": "T"}]
    write(folder, "tokenizer_config.json", {"chat_template": named})
    assert load_tokenizer(folder).chat_templates == {"default": "D", "tool_use": "T"}


def test_truncation_and_padding_of_training_are_not_applied(folder, smollm2):
    """A tokenizer.json saved with training settings must not cut or pad what clients send."""
    backend = load_tokenizer(folder).backend
    backend.enable_truncation(4)
    backend.enable_padding(length=64)
    (folder / "tokenizer.json").write_text(backend.to_str())
    text = "one two three four five six seven"
    assert load_tokenizer(folder).backend.encode(text).ids == smollm2.backend.encode(text).ids


def test_token_that_only_the_configuration_lists_is_added(folder):
    """transformers adds it, so texts with it must encode in the same way here."""
    entry = {"content": "<|extra|>", "special": True, "lstrip": False, "rstrip": False, "normalized": False}
    write(folder, "tokenizer_config.json", {"added_tokens_decoder": {"0": {"content": "x"}, "49152": entry}})
    tokenizer = load_tokenizer(folder)
    assert tokenizer.backend.encode("<|extra|>").ids == [49152]
    assert 49152 in tokenizer.vocabulary.special_ids


def test_contradicting_ids_are_refused(folder):
    """Two files that give one token two ids can't both be right."""
    write(folder, "tokenizer_config.json", {"added_tokens_decoder": {"60000": {"content": "<|extra|>"}}})
    with pytest.raises(ModelFormatError, match="60000"):
        load_tokenizer(folder)


@pytest.mark.parametrize("name", ["tokenizer_config.json", "generation_config.json", "config.json"])
@pytest.mark.parametrize("content", ["{", "[]"])
def test_broken_file_is_named(folder, name, content):
    """A file that is not a JSON object is named in the error."""
    (folder / name).write_text(content)
    with pytest.raises(ModelFormatError, match=name):
        load_tokenizer(folder)


def test_broken_tokenizer_file_is_named(folder):
    """So is a tokenizer.json that is no tokenizer."""
    (folder / "tokenizer.json").write_text('{"version": "1.0"}')
    with pytest.raises(ModelFormatError, match=r"tokenizer\.json"):
        load_tokenizer(folder)


def test_paths_without_a_tokenizer_are_refused(tmp_path, smollm2_path):
    """No file, an empty folder and a folder with two GGUF files are refused, each with its reason."""
    with pytest.raises(ModelFormatError, match="no model at"):
        load_tokenizer(tmp_path / "missing")
    with pytest.raises(ModelFormatError, match="0 GGUF files"):
        load_tokenizer(tmp_path)
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(ModelFormatError, match="2 GGUF files"):
        load_tokenizer(tmp_path)


def test_folder_with_one_gguf_file_is_that_file(tmp_path, smollm2_path, smollm2):
    """A folder may hold nothing but the GGUF file."""
    shutil.copy(smollm2_path, tmp_path / "model.gguf")
    assert load_tokenizer(tmp_path).fingerprint == smollm2.fingerprint
