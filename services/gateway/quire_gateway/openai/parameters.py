"""Which parameters of the OpenAI API are served, and how the others are refused.

One job: the tables of this dialect; request_body.py says what they mean.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from quire_gateway.request_body import Names, parse_body
from quire_gateway.request_body import StrictModel as StrictModel

#: Labels for the caller's own use: they change nothing.
HARMLESS = frozenset({"user", "metadata", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"})

#: Not served, but with these values nothing is asked for.
NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "store": (False,),
    "service_tier": ("auto", "default"),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (True, False),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "verbosity": ("medium",),
    "suffix": ("",),
    "best_of": (1,),
    "spaces_between_special_tokens": (True,),
    "include_reasoning": (True,),
    "documents": ([],),
    # A chat's template writes its own; completions serve it.
    "add_special_tokens": (False,),
}

#: Known to OpenAI or to other servers of its dialect, and not served yet.
UNSUPPORTED = frozenset(NEUTRAL) | {
    "audio", "prediction", "reasoning_effort", "web_search_options", "moderation",
    "response_format", "structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar",
    "guided_decoding_backend", "guided_whitespace_pattern", "prompt_logprob_token_ids",
    "prompt_logprob_start", "flat_logprobs", "chat_template", "thinking_token_budget", "logits_processors",
    "mm_processor_kwargs", "media_io_kwargs", "kv_transfer_params", "ec_transfer_params", "vllm_xargs",
    "repetition_detection", "prompt_embeds", "response_role", "echo",
    "add_generation_prompt", "continue_final_message", "chat_template_kwargs", "max_completion_tokens",
    "top_logprobs", "messages", "prompt",
}  # fmt: skip

NAMES = Names(HARMLESS, NEUTRAL, UNSUPPORTED)

M = TypeVar("M", bound=StrictModel)


def parse(body: bytes, model: type[M]) -> M:
    """The request in `body`. Raises InvalidRequest or Unsupported, naming the first parameter that is wrong."""
    return parse_body(body, model, NAMES)
