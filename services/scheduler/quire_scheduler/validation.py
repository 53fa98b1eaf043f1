"""Refuses requests that could never run, naming field, limit and value. Ranges of sampling values are the gateway's."""

from __future__ import annotations

from quire_scheduler.errors import InvalidRequest
from quire_scheduler.request import MAX_N, Request


def validate(request: Request, max_total_tokens: int, *, has_blocks: bool = True) -> None:
    """Raises InvalidRequest unless every sequence of the request can run alone in an empty engine.

    `max_total_tokens`: longest prompt plus output that context and pool allow. `has_blocks`: the model keeps keys and
    values, so it can generate.
    """
    sampling = request.sampling
    num_prompt = len(request.prompt_token_ids)
    if not 1 <= request.n <= MAX_N:
        raise InvalidRequest("n", f"1 to {MAX_N}", request.n)
    if num_prompt == 0:
        raise InvalidRequest("prompt_token_ids", "at least 1 token", 0)
    if request.is_pooled:
        _validate_pooled(request, max_total_tokens)
        return
    if not has_blocks:
        raise InvalidRequest("pooling", "set: this engine's model makes vectors only", "unset")
    if num_prompt >= max_total_tokens:
        raise InvalidRequest(
            "prompt_token_ids",
            f"at most {max_total_tokens - 1} tokens (prompt and output share {max_total_tokens})",
            num_prompt,
        )
    if sampling.max_tokens is not None and sampling.max_tokens < 1:
        raise InvalidRequest("max_tokens", "at least 1", sampling.max_tokens)
    for index, outputs in request.resumed.items():
        if not 0 <= index < request.n:
            raise InvalidRequest("resumed.sequence_index", f"0 to {request.n - 1}", index)
        if num_prompt + len(outputs) > max_total_tokens:
            raise InvalidRequest(
                "resumed.output_token_ids",
                f"at most {max_total_tokens - num_prompt} tokens after the prompt",
                len(outputs),
            )


def _validate_pooled(request: Request, max_total_tokens: int) -> None:
    num_prompt = len(request.prompt_token_ids)
    if num_prompt > max_total_tokens:
        raise InvalidRequest("prompt_token_ids", f"at most {max_total_tokens} tokens", num_prompt)
    if request.n != 1:
        raise InvalidRequest("n", "1 with pooling", request.n)
    if request.resumed:
        raise InvalidRequest("resumed", "empty with pooling", len(request.resumed))
