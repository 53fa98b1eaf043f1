"""Log-probabilities in the two shapes of the dialect, and a prompt's.

One job: chat's list of entries, completions' parallel lists, and the maps of prompt_logprobs. Token texts come from the
tokenizer's vocabulary, or are token_id:N where a client asked for that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from quire_gateway.sequences import TokenLogprob, Vocabulary

#: JSON has no infinity; the dialect writes this for a probability of zero.
_LOWEST = -9999.0


def _bytes_of(token_id: int, vocabulary: Vocabulary) -> bytes:
    return vocabulary[token_id] if token_id < len(vocabulary) else b""


def _text_of(token_id: int, vocabulary: Vocabulary, as_ids: bool) -> str:
    if as_ids:
        return f"token_id:{token_id}"
    return _bytes_of(token_id, vocabulary).decode("utf-8", "replace")


def _finite(logprob: float) -> float:
    return logprob if math.isfinite(logprob) else _LOWEST


def _entry(token_id: int, logprob: float, vocabulary: Vocabulary, as_ids: bool) -> dict[str, Any]:
    data = _bytes_of(token_id, vocabulary)
    return {
        "token": _text_of(token_id, vocabulary, as_ids),
        "logprob": _finite(logprob),
        "bytes": list(data),
    }


def chat_logprobs(
    logprobs: Sequence[TokenLogprob], vocabulary: Vocabulary, *, as_ids: bool = False
) -> dict[str, Any]:
    """`choices[].logprobs` of chat completions."""
    content = []
    for found in logprobs:
        entry = _entry(found.token_id, found.logprob, vocabulary, as_ids)
        entry["top_logprobs"] = [
            _entry(token_id, logprob, vocabulary, as_ids) for token_id, logprob in found.top
        ]
        content.append(entry)
    return {"content": content, "refusal": None}


def completion_logprobs(
    logprobs: Sequence[TokenLogprob],
    vocabulary: Vocabulary,
    first_offset: int,
    *,
    as_ids: bool = False,
    first_token_id: int | None = None,
    is_first_hidden: bool = False,
) -> tuple[dict[str, Any], int]:
    """`choices[].logprobs` of completions, and the offset behind its last token.

    first_offset: characters of the choice's text before the first token. A character cut between tokens counts for
    neither, so offsets name the place where a token's text begins. first_token_id: a prompt's first token, which stands
    in front and has no log-probability; is_first_hidden: the choice's text begins behind it.
    """
    tokens: list[str] = []
    offsets: list[int] = []
    values: list[float | None] = []
    tops: list[dict[str, float] | None] = []
    offset = first_offset

    def add(token_id: int) -> str:
        nonlocal offset
        text = _text_of(token_id, vocabulary, as_ids)
        tokens.append(text)
        offsets.append(offset)
        offset += len(_bytes_of(token_id, vocabulary).decode("utf-8", "ignore"))
        return text

    if first_token_id is not None:
        add(first_token_id)
        offset = first_offset if is_first_hidden else offset
        values.append(None)
        tops.append(None)
    for found in logprobs:
        text = add(found.token_id)
        top = {_text_of(token_id, vocabulary, as_ids): _finite(value) for token_id, value in found.top}
        top.setdefault(text, _finite(found.logprob))
        tops.append(top)
        values.append(_finite(found.logprob))
    return {"tokens": tokens, "token_logprobs": values, "top_logprobs": tops, "text_offset": offsets}, offset


def prompt_logprobs(
    logprobs: Sequence[TokenLogprob], vocabulary: Vocabulary, *, as_ids: bool = False
) -> list[dict[str, Any] | None]:
    """`prompt_logprobs`: null for the first token, then maps by token id: the prompt's own and the likeliest ones."""
    entries: list[dict[str, Any] | None] = [None]
    for found in logprobs:
        ranked = [(token_id, value, rank) for rank, (token_id, value) in enumerate(found.top, start=1)]
        if all(token_id != found.token_id for token_id, _, _ in ranked):
            ranked.append((found.token_id, found.logprob, found.rank))
        entries.append(
            {
                str(token_id): {
                    "logprob": _finite(value),
                    "rank": rank,
                    "decoded_token": _text_of(token_id, vocabulary, as_ids),
                }
                for token_id, value, rank in ranked
            }
        )
    return entries
