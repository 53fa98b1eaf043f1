"""How the served model writes calls and reasoning, chosen by settings or by its chat template.

One job: that choice, and what follows from the model's vocabulary for it. Knows neither gRPC nor any dialect.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import cached_property

from quire_gateway.chat.special_texts import SpecialTexts
from quire_gateway.parsing.reasoning.base import ReasoningFormat
from quire_gateway.parsing.registry import (
    AUTO,
    NONE,
    FormatSettings,
    reasoning_format,
    reasoning_format_of,
    tool_format,
    tool_format_of,
)
from quire_gateway.parsing.tools.base import ToolFormat
from quire_gateway.parsing.tools.hermes import HermesFormat
from quire_gateway.tokenizer_client import TokenizerInfo


class ModelFormats:
    """The formats of one model."""

    def __init__(self, settings: FormatSettings, info: TokenizerInfo) -> None:
        self._info = info
        self.template = "\n".join(info.chat_templates)
        #: The template tells the model of tools by itself.
        self.is_tool_aware = "tools" in self.template
        self.tools = _tool_format(settings.tools, self.template)
        self.reasoning = _reasoning_format(settings.reasoning, self.template)

    @cached_property
    def special_tokens(self) -> dict[str, int]:
        """Ids of special tokens by their texts."""
        vocabulary = self._info.vocabulary
        ids = (token_id for token_id in self._info.special_token_ids if token_id < len(vocabulary))
        return {text: i for i in sorted(ids) if (text := vocabulary[i].decode(errors="replace"))}

    @cached_property
    def special_texts(self) -> SpecialTexts:
        """What has to be taken out of a text for which they were kept."""
        return SpecialTexts(self.special_tokens)

    def needs_special_tokens(self, markers: Sequence[str]) -> bool:
        """Whether a parser with these markers could not work on a text without special tokens."""
        return any(marker in self.special_tokens for marker in markers)

    async def token_ids_of(
        self, text: str, encode: Callable[[str], Awaitable[Sequence[int]]]
    ) -> tuple[int, ...]:
        """The token ids in which the model writes a mark. encode: for marks that are no single token."""
        if text in self.special_tokens:
            return (self.special_tokens[text],)
        try:
            return (self._info.vocabulary.index(text.encode()),)
        except ValueError:
            return tuple(await encode(text))


def _tool_format(name: str, template: str) -> ToolFormat | None:
    if name == NONE:
        return None
    # Where nothing is sure the model is told how to write calls.
    return tool_format(name) if name != AUTO else tool_format_of(template) or HermesFormat()


def _reasoning_format(name: str, template: str) -> ReasoningFormat | None:
    if name == NONE:
        return None
    return reasoning_format(name) if name != AUTO else reasoning_format_of(template)
