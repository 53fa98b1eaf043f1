"""From a request's prompts to token ids: tokenised, cut where that was asked for, and checked against the limits.

One job: what the engine computes before the first output token. Knows no dialect: `names` say what it calls our fields.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from quire_gateway.models import ServedModel
from quire_gateway.requests import (
    ChatPrompt,
    GenerationRequest,
    Prompt,
    TextPrompt,
    TokenPrompt,
    Truncation,
    TruncationSide,
)
from quire_gateway.tokenizer_client import TokenizerInfo
from quire_servicekit.errors import InvalidRequest, Unsupported


class Tokenizer(Protocol):
    """What this needs of the tokenizer client."""

    info: TokenizerInfo | None

    async def encode(self, texts: Sequence[str], *, add_special_tokens: bool = True) -> list[list[int]]:
        """The token ids of each text."""

    async def render_chat(self, prompt: ChatPrompt) -> tuple[str, list[int]]:
        """The conversation by the model's chat template, and its token ids."""

    async def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of token ids."""


@dataclass(frozen=True, slots=True)
class EncodedPrompt:
    """A prompt's tokens, and its text where that is known beside them."""

    token_ids: list[int]
    text: str | None = None


async def encode_prompts(
    tokenizer: Tokenizer, prompts: Sequence[Prompt], names: Mapping[str, str]
) -> list[EncodedPrompt]:
    """The tokens of each prompt, all of one kind; texts go in one call. Raises naming the client's own field."""
    try:
        if isinstance(prompts[0], TextPrompt):
            texts = [prompt.text for prompt in prompts if isinstance(prompt, TextPrompt)]
            encoded = await tokenizer.encode(texts, add_special_tokens=prompts[0].add_special_tokens)
            return [EncodedPrompt(ids, text) for ids, text in zip(encoded, texts, strict=True)]
        return [await _encode_one(tokenizer, prompt) for prompt in prompts]
    except InvalidRequest as error:
        # The tokenizer names its own field; the client knows only the one it wrote.
        field = names.get(error.field) or names.get("prompt", "prompt")
        raise InvalidRequest(
            field, error.limit, error.value, message=error.message, code=error.code
        ) from error


async def _encode_one(tokenizer: Tokenizer, prompt: Prompt) -> EncodedPrompt:
    if isinstance(prompt, ChatPrompt):
        info = tokenizer.info
        if info is not None and not info.has_chat_template and not prompt.chat_template:
            raise Unsupported("messages", message="this model has no chat template: use a plain prompt")
        text, token_ids = await tokenizer.render_chat(prompt)
        return EncodedPrompt(token_ids, text)
    assert isinstance(prompt, TokenPrompt)
    return EncodedPrompt(list(prompt.token_ids))


def fit(
    request: GenerationRequest, prompt: EncodedPrompt, model: ServedModel, names: Mapping[str, str]
) -> EncodedPrompt:
    """The prompt as it is computed: checked, and cut if the request wants that. Raises InvalidRequest otherwise."""
    field, limit = names.get("prompt", "prompt"), model.max_model_len
    if not prompt.token_ids:
        raise InvalidRequest(field, "at least one token", 0)
    for token_id in prompt.token_ids if isinstance(request.prompt, TokenPrompt) else ():
        if token_id >= model.vocab_size:
            raise InvalidRequest(field, f"token ids from 0 to {model.vocab_size - 1}", token_id)
    num_output = request.sampling.max_tokens or 1
    if request.truncation is not None:
        prompt = _truncate(prompt, request.truncation, limit - num_output)
    num_prompt = len(prompt.token_ids)
    if num_prompt + num_output > limit:
        raise InvalidRequest(
            field,
            limit,
            num_prompt,
            message=f"This model's maximum context length is {limit} tokens. However, you requested "
            f"{num_prompt + num_output} tokens ({num_prompt} in the {field}, {num_output} in the "
            f"completion). Please reduce the length of the {field} or completion.",
            code="context_length_exceeded",
        )
    return prompt


def _truncate(prompt: EncodedPrompt, truncation: Truncation, room: int) -> EncodedPrompt:
    """The end of the prompt, or its beginning, that is at most so long. room: what fits beside the output."""
    # Without room for any prompt the check that follows says so; one token is what is left of it here.
    length = truncation.max_tokens if truncation.max_tokens is not None else max(room, 1)
    if len(prompt.token_ids) <= length:
        return prompt
    is_left = truncation.side is TruncationSide.LEFT
    return EncodedPrompt(prompt.token_ids[-length:] if is_left else prompt.token_ids[:length])


async def encode_bad_words(
    tokenizer: Tokenizer, words: Sequence[str], names: Mapping[str, str]
) -> tuple[tuple[int, ...], ...]:
    """Token sequences that write one of `words`: as a text begins, and behind a space.

    A word that the model writes with other tokens than the tokenizer would is not found: it knows tokens, not text.
    """
    if not words:
        return ()
    plain = [word.lstrip() for word in words]
    texts = [text for word in plain for text in (word, f" {word}")]
    try:
        encoded = await tokenizer.encode(texts, add_special_tokens=False)
    except InvalidRequest as error:
        raise InvalidRequest(names.get("bad_words", "bad_words"), message=error.message) from error
    return tuple(dict.fromkeys(tuple(ids) for ids in encoded if ids))
