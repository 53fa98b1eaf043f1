"""What the scheduler can be told."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from quire_scheduler.config import SchedulerConfig
from quire_scheduler.grammar.compiler import CompilerLimits
from quire_scheduler.worker_client import PoolSizes
from quire_servicekit.settings import ServiceSettings


class SchedulerSettings(ServiceSettings):
    """The queue, all KV-block metadata and the step plan of one engine replica."""

    service: ClassVar[str] = "scheduler"

    listen: str = Field("127.0.0.1:8083", description="Address of the gRPC server: host:port or unix:/path.")
    worker: str = Field("127.0.0.1:8084", description="Address of the worker: host:port or unix:/path.")
    tokenizer: str = Field(
        "", description="Address of the tokenizer: host:port or unix:/path. Empty: constraints are refused."
    )
    grammar_timeout_s: float = Field(
        5.0, gt=0, description="Seconds that compiling one constraint may take; beyond: INVALID_ARGUMENT."
    )
    grammar_processes: int = Field(2, ge=1, le=64, description="Constraints compiled at once.")
    grammar_cache_size: int = Field(256, ge=1, description="Compiled constraints that are remembered.")
    block_size: int = Field(16, ge=1, description="Tokens of a KV block.")
    num_blocks: int = Field(
        0, ge=0, description="Blocks of the pool, null block included; 0: what memory holds."
    )
    max_num_seqs: int = Field(0, ge=0, description="Most sequences in one step; 0: the worker's default.")
    max_num_batched_tokens: int = Field(
        0, ge=0, description="Most tokens in one step; 0: the worker's default."
    )
    max_model_len: int = Field(0, ge=0, description="Longest prompt plus output, tokens; 0: the model's.")
    long_prefill_token_threshold: int = Field(
        0, ge=0, description="Most tokens of one prompt in one step; 0: only the step's limit."
    )
    enable_prefix_caching: bool = Field(True, description="Share the blocks of equal prefixes.")
    policy: Literal["fcfs", "priority", "fair"] = Field(
        "fcfs", description="Order of admission: by arrival, by priority, or in turn among tenants."
    )
    max_waiting_sequences: int = Field(
        1024, ge=1, description="Sequences that may wait; beyond: RESOURCE_EXHAUSTED."
    )
    max_waiting_tokens: int = Field(
        1 << 20, ge=1, description="Prompt tokens that may wait; beyond: RESOURCE_EXHAUSTED."
    )
    max_steps_in_flight: int = Field(
        2, ge=1, le=8, description="Steps sent to the worker and not yet answered."
    )
    watermark: float = Field(
        0.01,
        ge=0,
        lt=1,
        description="Share of the pool kept free when a request is admitted beside running ones.",
    )
    max_unread_tokens: int = Field(
        1 << 20, ge=1, description="Tokens that a gateway may leave unread before its stream is ended."
    )
    stall_timeout_s: float = Field(
        60.0, gt=0, description="Not ready when sequences run and no step has ended for this many seconds."
    )
    log_interval_s: float = Field(
        10.0, gt=0, description="Seconds between two lines about the load, while steps run."
    )
    takeover_delay_s: float = Field(
        5.0, ge=0, description="Seconds to stay away from a worker that another scheduler has taken over."
    )
    reconnect_delay_s: float = Field(0.2, gt=0, description="Seconds between two tries to reach a worker.")

    @model_validator(mode="after")
    def _check_step(self) -> SchedulerSettings:
        if self.max_num_batched_tokens and self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens must be at least max_num_seqs ({self.max_num_seqs}), "
                f"got {self.max_num_batched_tokens}"
            )
        return self

    def pool_sizes(self) -> PoolSizes:
        """What the worker is asked to allocate."""
        return PoolSizes(
            block_size=self.block_size,
            max_num_seqs=self.max_num_seqs,
            max_tokens_per_step=self.max_num_batched_tokens,
            max_model_len=self.max_model_len,
            num_blocks=self.num_blocks,
        )

    def compiler_limits(self) -> CompilerLimits:
        """What compiling constraints may cost."""
        return CompilerLimits(self.grammar_timeout_s, self.grammar_processes, self.grammar_cache_size)

    def scheduler_config(
        self,
        *,
        block_size: int,
        max_num_seqs: int,
        max_tokens: int,
        max_model_len: int,
        has_blocks: bool = True,
    ) -> SchedulerConfig:
        """The domain's limits, with the sizes that the worker has allocated."""
        return SchedulerConfig(
            block_size=block_size,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_tokens,
            max_model_len=max_model_len,
            long_prefill_token_threshold=self.long_prefill_token_threshold,
            enable_prefix_caching=self.enable_prefix_caching,
            max_steps_in_flight=self.max_steps_in_flight,
            max_waiting_sequences=self.max_waiting_sequences,
            max_waiting_tokens=self.max_waiting_tokens,
            policy=self.policy,
            watermark=self.watermark,
            has_blocks=has_blocks,
        )
