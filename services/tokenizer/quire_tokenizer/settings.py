"""What the tokenizer service can be told."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from pydantic import Field

from quire_servicekit.settings import ServiceSettings
from quire_tokenizer.conversation import ChatLimits
from quire_tokenizer.encode import TextLimits
from quire_tokenizer.text_pool import PoolLimits


class TokenizerSettings(ServiceSettings):
    """Text to tokens and back, for one model."""

    service: ClassVar[str] = "tokenizer"

    listen: str = Field("127.0.0.1:8082", description="Address of the gRPC server: host:port or unix:/path.")
    model: Path = Field(
        ..., description="The model: a GGUF file, or a folder with tokenizer.json or one GGUF file."
    )
    max_text_chars: int = Field(
        2_000_000, ge=1, description="Longest text to encode, and longest conversation, in characters."
    )
    max_texts: int = Field(1024, ge=1, description="Most texts in one Encode call.")
    max_decode_tokens: int = Field(1_000_000, ge=1, description="Most token ids in one Decode call.")
    max_streams: int = Field(65_536, ge=1, description="Most open detokenisation streams of one caller.")
    num_threads: int = Field(2, ge=1, le=64, description="Threads for long texts.")
    max_inline_chars: int = Field(
        1024, ge=0, description="Texts up to this length are encoded at once, longer ones on a thread."
    )
    max_waiting_chars: int = Field(
        64_000_000, ge=1, description="Characters that may wait for a thread; beyond it calls are refused."
    )
    max_render_s: float = Field(2.0, gt=0, description="Longest rendering of one chat template, in seconds.")
    allow_request_templates: bool = Field(
        False, description="Accept a chat template from a request. Only for clients that are trusted."
    )

    def text_limits(self) -> TextLimits:
        """The limits of encoding and decoding."""
        return TextLimits(self.max_text_chars, self.max_texts, self.max_decode_tokens)

    def pool_limits(self) -> PoolLimits:
        """The size of the pool for long texts."""
        return PoolLimits(self.num_threads, self.max_inline_chars, self.max_waiting_chars)

    def chat_limits(self) -> ChatLimits:
        """The limits of rendering conversations."""
        return ChatLimits(self.max_text_chars, self.max_render_s, self.allow_request_templates)
