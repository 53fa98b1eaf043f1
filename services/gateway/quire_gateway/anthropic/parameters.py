"""Which parameters of the Anthropic API are served, and how the others are refused.

One job: the table of this dialect; request_body.py says what it means.
"""

from __future__ import annotations

from quire_gateway.request_body import Names

#: Prefixes are cached without being asked to be, so `cache_control` changes nothing.
HARMLESS = frozenset({"metadata", "cache_control", "user_profile_id", "workspace_id", "diagnostics"})

NAMES = Names(
    harmless=HARMLESS,
    neutral={
        "service_tier": ("auto", "standard_only"),
        "speed": ("standard",),
        "mcp_servers": ([],),
        "betas": ([],),
    },
    unsupported=frozenset({"container", "context_management", "inference_geo", "top_logprobs", "fallbacks"}),
)
