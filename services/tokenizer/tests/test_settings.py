"""The service's settings: a fixed list, so that adding one shows in review."""

from __future__ import annotations

import pytest

from quire_servicekit.settings import ServiceSettings, SettingsError
from quire_tokenizer.settings import TokenizerSettings


def test_the_list_of_settings():
    """These are the tokenizer's own settings and their defaults."""
    own = {
        name: field.default
        for name, field in TokenizerSettings.model_fields.items()
        if name not in ServiceSettings.model_fields or name == "listen"
    }
    required = own.pop("model")
    assert repr(required) == "PydanticUndefined"
    assert own == {
        "listen": "127.0.0.1:8082",
        "max_text_chars": 2_000_000,
        "max_texts": 1024,
        "max_decode_tokens": 1_000_000,
        "max_streams": 65_536,
        "num_threads": 2,
        "max_inline_chars": 1024,
        "max_waiting_chars": 64_000_000,
        "max_render_s": 2.0,
        "allow_request_templates": False,
    }


def test_limits_are_made_of_the_settings():
    """Each limit reaches the component that keeps it."""
    settings = TokenizerSettings(model="m", max_text_chars=5, max_texts=6, max_decode_tokens=7, num_threads=8)
    assert (settings.text_limits().max_text_chars, settings.text_limits().max_texts) == (5, 6)
    assert (settings.text_limits().max_decode_tokens, settings.pool_limits().num_threads) == (7, 8)
    assert settings.chat_limits().max_chars == 5


def test_the_model_must_be_named():
    """Without a model the start fails and says which setting is missing."""
    with pytest.raises(SettingsError, match="model"):
        TokenizerSettings.load([], {})
    assert str(TokenizerSettings.load(["--model", "x.gguf"], {}).model) == "x.gguf"
    assert TokenizerSettings.load([], {"QUIRE_TOKENIZER_MODEL": "y"}).model.name == "y"
