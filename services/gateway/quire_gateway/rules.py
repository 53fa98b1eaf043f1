"""What an operator allows and presets for all requests. Plain data: settings.py makes it."""

from __future__ import annotations

from dataclasses import dataclass, field

from quire_gateway.sampling import MAX_LOGPROBS, Sampling


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRules:
    """Limits and defaults.

    max_logprobs: alternatives per token that a request may ask for; sampling.ALL_TOKENS: as many as there are.
    default_sampling: used where a request says nothing, before the model's generation_config.
    uses_generation_config: whether that one is used at all.
    trusts_chat_template: requests may bring their own; it runs in the tokenizer's sandbox.
    """

    max_logprobs: int = MAX_LOGPROBS
    default_sampling: Sampling = field(default_factory=Sampling)
    uses_generation_config: bool = True
    trusts_chat_template: bool = False
