"""What every file format is turned into before anything else looks at it."""

from __future__ import annotations

from dataclasses import dataclass, field

from tokenizers import Tokenizer

from quire_tokenizer.vocabulary import SpecialTokens

DEFAULT_TEMPLATE = "default"
TOOL_TEMPLATE = "tool_use"


@dataclass(frozen=True, slots=True)
class TokenizerSource:
    """One model's tokenizer as its files give it.

    `merges`: pairs joined by one space, in order of priority; empty for a tokenizer without merges.
    `num_ids`: rows of the model's vocabulary, which may be more than the tokenizer names.
    `chat_templates`: by name; `default`, and `tool_use` where the model has another one for requests with tools.
    """

    backend: Tokenizer
    special: SpecialTokens
    merges: list[str]
    num_ids: int = 0
    chat_templates: dict[str, str] = field(default_factory=dict)
