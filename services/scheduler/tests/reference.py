"""The model that the harness's worker computes, and what each request must give, without any scheduling."""

from __future__ import annotations

import zlib

from quire_scheduler.request import Request

VOCABULARY = 11
EOS = 10


def next_token(history: list[int], seed: int, sequence_index: int) -> int:
    """The model: any token of the vocabulary, by a hash of the whole history."""
    return zlib.crc32(repr((history, seed, sequence_index)).encode()) % VOCABULARY


def reference_output(request: Request, sequence_index: int, max_total_tokens: int) -> list[int]:
    """What the sequence must give, computed without any scheduling."""
    sampling = request.sampling
    room = max_total_tokens - len(request.prompt_token_ids)
    longest = room if sampling.max_tokens is None else min(room, sampling.max_tokens)
    outputs = list(request.resumed.get(sequence_index, []))
    while len(outputs) < longest:
        token = next_token(request.prompt_token_ids + outputs, sampling.seed, sequence_index)
        outputs.append(token)
        if token in sampling.ending_token_ids() and len(outputs) > sampling.min_tokens:
            break
    return outputs
