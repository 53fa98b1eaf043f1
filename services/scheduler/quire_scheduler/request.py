"""A request, its sequences, and the states they pass through; knows nothing of blocks' contents, queues or wires.

A request is what a client asked; a sequence is one continuation of it (n > 1 gives several).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import Any, Protocol

from quire_scheduler.errors import IllegalTransition
from quire_scheduler.grammar.constraint import Constraint, ReasoningSpan

MAX_N = 128


class Masker(Protocol):
    """Follows a sequence's output and says what may come next; see the grammar package."""

    @property
    def is_done(self) -> bool:
        """Nothing depends on it any more."""
        ...

    def consume(self, output_token_ids: list[int], num_tokens: int) -> None:
        """Take in the output's first `num_tokens` tokens, as far as that is still to do."""
        ...

    def fill(self, row: Any) -> None:
        """Set the bits of the tokens that may come next in a row of zeros."""
        ...


class FinishReason(IntEnum):
    """Why a sequence ended; the numbers are those of the contract's enum, 0 meaning "not finished"."""

    STOP = 1
    LENGTH = 2
    ABORT = 3
    DEADLINE = 4
    ERROR = 5


class SequenceStatus(Enum):
    """Where a sequence is in its life; `TRANSITIONS` has the edges."""

    # Accepted but not in the queue: a sibling (n > 1) waits here until sequence 0's prompt is computed, to share it.
    HELD = "held"
    WAITING = "waiting"
    RUNNING = "running"
    # Was running, gave its blocks back, waits to be computed again.
    PREEMPTED = "preempted"
    FINISHED = "finished"


TRANSITIONS: Mapping[SequenceStatus, frozenset[SequenceStatus]] = {
    SequenceStatus.HELD: frozenset({SequenceStatus.WAITING, SequenceStatus.FINISHED}),
    SequenceStatus.WAITING: frozenset({SequenceStatus.RUNNING, SequenceStatus.FINISHED}),
    SequenceStatus.RUNNING: frozenset({SequenceStatus.PREEMPTED, SequenceStatus.FINISHED}),
    SequenceStatus.PREEMPTED: frozenset({SequenceStatus.RUNNING, SequenceStatus.FINISHED}),
    SequenceStatus.FINISHED: frozenset(),
}


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are chosen, every default resolved; the scheduler itself reads only the stop and length fields.

    Ranges are the gateway's to check; `None` means "not asked for" (or, for `max_tokens`, up to the context length).
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int = 0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    num_logprobs: int | None = None
    num_prompt_logprobs: int | None = None
    min_tokens: int = 0
    max_tokens: int | None = None
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()
    eos_token_ids: tuple[int, ...] = ()
    allowed_token_ids: tuple[int, ...] = ()
    constraint: Constraint | None = None
    reasoning: ReasoningSpan | None = None

    @property
    def is_masked(self) -> bool:
        """Whether masks bound what its sequences sample."""
        return self.constraint is not None or self.reasoning is not None

    def ending_token_ids(self) -> frozenset[int]:
        """Token ids that end a sequence: the user's always, the model's unless `ignore_eos`."""
        if self.ignore_eos:
            return frozenset(self.stop_token_ids)
        return frozenset(self.stop_token_ids) | frozenset(self.eos_token_ids)


@dataclass(slots=True, eq=False)
class Request:
    """What one gateway asked, named by (owner, handle); immutable but for its list of sequences and its times.

    `resumed` maps sequence index to the output tokens a sequence already has; when it is not empty only the listed
    sequences run. `deadline_s` and `arrival_s` are on the injected monotonic clock. `adapter` must change whenever the
    adapter's content does (name and version), since it is part of the prefix key. `attachment` is the caller's own
    (for example the wire message of the sampling parameters); the domain never looks at it.
    """

    owner: Hashable
    handle: int
    prompt_token_ids: list[int]
    sampling: SamplingParams = field(default_factory=SamplingParams)
    request_id: str = ""
    n: int = 1
    resumed: Mapping[int, list[int]] = field(default_factory=dict)
    priority: int = 0
    tenant: str = ""
    deadline_s: float | None = None
    cache_salt: str = ""
    adapter: str = ""
    # W3C context of the client's call; empty if none.
    traceparent: str = ""
    media_hashes: tuple[bytes, ...] = ()
    attachment: Any = None
    skip_reading_prefix_cache: bool = False
    # The answer is a vector, made in the step that computes the prompt's last token; nothing is generated.
    is_pooled: bool = False
    # What its constraint needs is not compiled yet: its sequences are held back until `SchedulerCore.start`.
    awaits_grammar: bool = False
    # Set by the scheduler.
    arrival_s: float = 0.0
    arrival_order: int = 0
    first_scheduled_s: float | None = None
    # Siblings share the prompt's blocks of this sequence.
    fork_source: Sequence | None = None
    num_cached_tokens: int = 0
    sequences: list[Sequence] = field(default_factory=list)
    num_unfinished: int = 0
    # The sequence that computes the prompt's log-probabilities, and how many of them were passed on.
    prompt_scorer: Sequence | None = None
    num_prompt_logprobs_sent: int = 0
    # Hashes of the prompt's full blocks, made when first needed and shared by the siblings.
    prompt_hashes: list[bytes] | None = None

    def must_score_prompt(self, sequence: Sequence) -> bool:
        """Whether `sequence`, which is about to start, has to compute the prompt's log-probabilities: the request wants
        some that it has not got, and no other sequence that runs is at it."""
        if self.sampling.num_prompt_logprobs is None:
            return False
        other = self.prompt_scorer
        is_free = other is None or other is sequence or other.status is not SequenceStatus.RUNNING
        # The first prompt token has none.
        return is_free and self.num_prompt_logprobs_sent < len(self.prompt_token_ids) - 1


class Sequence:
    """One continuation of a request: its tokens, its place in the pool and how far it is planned.

    `num_planned_tokens` counts the leading tokens whose keys and values are computed once every step planned so far has
    run, in-flight steps included; `output_token_ids` has only acknowledged tokens. While a sequence decodes it is one
    token ahead: known tokens, counting those in flight, are `num_planned_tokens + 1`.
    """

    __slots__ = (
        "block_hashes",
        "block_table",
        "ending_token_ids",
        "finish_reason",
        "first_token_s",
        "index",
        "last_step_id",
        "masker",
        "max_outputs",
        "num_planned_tokens",
        "num_preemptions",
        "num_registered_blocks",
        "order",
        "output_token_ids",
        "plan_event",
        "plan_limit",
        "queue_entry",
        "request",
        "slot",
        "status",
    )

    def __init__(
        self, request: Request, index: int, output_token_ids: list[int], max_total_tokens: int
    ) -> None:
        """`max_total_tokens`: prompt plus output may never be longer (context length, pool)."""
        self.request = request
        self.index = index
        self.status = SequenceStatus.HELD
        self.output_token_ids = output_token_ids
        self.slot = -1
        self.block_table: list[int] = []
        self.num_planned_tokens = 0
        self.num_registered_blocks = 0
        self.num_preemptions = 0
        # Step that touched its blocks last; steps are acknowledged in order.
        self.last_step_id = -1
        self.limit_to(max_total_tokens)
        # Next value of num_planned_tokens at which the planner must look closer: block table full, or plan_limit.
        self.plan_event = 0
        self.ending_token_ids = request.sampling.ending_token_ids()
        self.finish_reason: FinishReason | None = None
        self.first_token_s: float | None = None
        self.block_hashes: list[bytes] = []
        self.queue_entry: Any = None
        # What bounds its next token; None: nothing.
        self.masker: Masker | None = None
        # Age: smaller is older. Ties of one request go by sequence index.
        self.order = (request.arrival_order, index)

    def limit_to(self, max_total_tokens: int) -> None:
        """Sets the longest length, prompt plus output, that the context and the pool allow."""
        num_prompt = len(self.request.prompt_token_ids)
        if self.request.is_pooled:
            self.max_outputs, self.plan_limit = 1, min(num_prompt, max_total_tokens)
            return
        room = max_total_tokens - num_prompt
        max_tokens = self.request.sampling.max_tokens
        self.max_outputs = room if max_tokens is None else min(room, max_tokens)
        # The last output token is never computed, so planning stops one short of the longest length.
        self.plan_limit = num_prompt + self.max_outputs - 1

    @property
    def num_tokens(self) -> int:
        """Acknowledged tokens: prompt and output."""
        return len(self.request.prompt_token_ids) + len(self.output_token_ids)

    def all_token_ids(self) -> list[int]:
        """Prompt and acknowledged output, as a new list."""
        return self.request.prompt_token_ids + self.output_token_ids

    def forget_placement(self) -> None:
        """The pool that held its blocks is gone: it has neither slot nor blocks."""
        self.slot = -1
        self.block_table = []
        self.num_registered_blocks = 0
        self.num_planned_tokens = 0
        self.plan_event = 0

    def move_to(self, status: SequenceStatus) -> None:
        """Changes state along an edge of `TRANSITIONS`; any other change raises IllegalTransition."""
        if status not in TRANSITIONS[self.status]:
            name = f"{self.request.request_id}/{self.index}"
            raise IllegalTransition(f"sequence {name}: {self.status.value} -> {status.value}")
        self.status = status

    def __repr__(self) -> str:
        return (
            f"Sequence({self.request.owner}/{self.request.handle}/{self.index}, {self.status.value}, "
            f"planned={self.num_planned_tokens}, outputs={len(self.output_token_ids)})"
        )
