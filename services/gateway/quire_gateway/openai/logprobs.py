"""Log-probabilities in the two shapes of the dialect.

One job: chat's list of entries and completions' parallel lists. Token texts come from the tokenizer's vocabulary.
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


def _text_of(token_id: int, vocabulary: Vocabulary) -> str:
    return _bytes_of(token_id, vocabulary).decode("utf-8", "replace")


def _finite(logprob: float) -> float:
    return logprob if math.isfinite(logprob) else _LOWEST


def _entry(token_id: int, logprob: float, vocabulary: Vocabulary) -> dict[str, Any]:
    data = _bytes_of(token_id, vocabulary)
    return {"token": data.decode("utf-8", "replace"), "logprob": _finite(logprob), "bytes": list(data)}


def chat_logprobs(logprobs: Sequence[TokenLogprob], vocabulary: Vocabulary) -> dict[str, Any]:
    """`choices[].logprobs` of chat completions."""
    content = []
    for found in logprobs:
        entry = _entry(found.token_id, found.logprob, vocabulary)
        entry["top_logprobs"] = [_entry(token_id, logprob, vocabulary) for token_id, logprob in found.top]
        content.append(entry)
    return {"content": content, "refusal": None}


def completion_logprobs(
    logprobs: Sequence[TokenLogprob], vocabulary: Vocabulary, first_offset: int
) -> tuple[dict[str, Any], int]:
    """`choices[].logprobs` of completions, and the offset behind its last token.

    first_offset: characters of the choice's text before the first token. A character cut between tokens counts for
    neither, so offsets name the place where a token's text begins.
    """
    tokens, offsets, tops, offset = [], [], [], first_offset
    for found in logprobs:
        text = _text_of(found.token_id, vocabulary)
        tokens.append(text)
        offsets.append(offset)
        offset += len(_bytes_of(found.token_id, vocabulary).decode("utf-8", "ignore"))
        top = {_text_of(token_id, vocabulary): _finite(logprob) for token_id, logprob in found.top}
        top.setdefault(text, _finite(found.logprob))
        tops.append(top)
    values = [_finite(found.logprob) for found in logprobs]
    return {"tokens": tokens, "token_logprobs": values, "top_logprobs": tops, "text_offset": offsets}, offset
