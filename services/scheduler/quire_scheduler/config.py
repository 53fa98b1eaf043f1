"""The limits the scheduler's domain works under; values only, read from settings elsewhere."""

from __future__ import annotations

from dataclasses import dataclass

POLICIES = ("fcfs", "priority", "fair")


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """One engine's limits. Raises ValueError naming the field, the limit and the value.

    `long_prefill_token_threshold`: most tokens of one prompt in one step, 0 for no limit. `watermark`: share of the
    pool kept free when a waiting sequence is admitted beside running ones. `has_blocks`: False for a model that keeps
    no keys and values: a sequence is computed whole in one step and holds no block.
    """

    block_size: int = 16
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    max_model_len: int = 8192
    long_prefill_token_threshold: int = 0
    enable_prefix_caching: bool = True
    max_steps_in_flight: int = 2
    max_waiting_sequences: int = 1024
    max_waiting_tokens: int = 1_048_576
    policy: str = "fcfs"
    watermark: float = 0.01
    has_blocks: bool = True

    def __post_init__(self) -> None:
        for name in (
            "block_size",
            "max_num_seqs",
            "max_num_batched_tokens",
            "max_steps_in_flight",
            "max_waiting_sequences",
            "max_waiting_tokens",
        ):
            _require(getattr(self, name) >= 1, name, "at least 1", getattr(self, name))
        _require(self.max_model_len >= 2, "max_model_len", "at least 2", self.max_model_len)
        _require(self.policy in POLICIES, "policy", f"one of {', '.join(POLICIES)}", self.policy)
        _require(0 <= self.watermark < 1, "watermark", "in [0, 1)", self.watermark)
        _require(
            self.long_prefill_token_threshold >= 0,
            "long_prefill_token_threshold",
            "at least 0",
            self.long_prefill_token_threshold,
        )
        # Every decoding sequence needs its token each step; then a full batch can never be cut in two.
        _require(
            self.max_num_batched_tokens >= self.max_num_seqs,
            "max_num_batched_tokens",
            f"at least max_num_seqs ({self.max_num_seqs})",
            self.max_num_batched_tokens,
        )


def _require(holds: bool, name: str, limit: str, value: object) -> None:
    if not holds:
        raise ValueError(f"{name} must be {limit}, got {value}")
