"""One request under way: what an engine needs to run it, again if must be, and where its output goes.

One job: hold that state and say what is left to do. It outlives any one engine. Knows neither gRPC nor protobuf.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from quire_gateway.models import ServedModel
from quire_gateway.outlet import Outlet
from quire_gateway.pooling.params import PoolingParams
from quire_gateway.sampling import Sampling
from quire_gateway.sequences import OutputSpec, SequenceState, TokenLogprob, Vocabulary
from quire_servicekit.errors import QuireError


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRequest:
    """What crosses to an engine, whichever it is; every default is resolved."""

    id: str
    model: ServedModel
    prompt_token_ids: list[int]
    sampling: Sampling
    n: int = 1
    priority: int = 0
    tenant: str = ""
    cache_salt: str = ""
    session_id: str = ""
    skip_reading_prefix_cache: bool = False
    traceparent: str = ""
    #: Event loop time after which nobody waits any more; None: no deadline.
    deadline: float | None = None
    skip_special_tokens: bool = True
    detokenize: bool = True
    #: Set: the answer is a vector, and `sampling` means nothing.
    pooling: PoolingParams | None = None


class ActiveRequest:
    """A request that has not ended. Ends when every sequence has, when it fails, or when its client goes."""

    __slots__ = (
        "_on_finished",
        "_on_stopped",
        "address",
        "avoided",
        "handle",
        "is_accepted",
        "is_closed",
        "num_cached_tokens",
        "num_moves",
        "num_on_engine",
        "num_unfinished",
        "outlet",
        "parked",
        "prompt_logprobs",
        "prompt_text",
        "rejected_by",
        "sequences",
        "spec",
        "vector",
    )

    def __init__(
        self,
        spec: EngineRequest,
        outlet: Outlet,
        output: OutputSpec,
        *,
        first_choice_index: int = 0,
        vocabulary: Vocabulary = (),
        on_finished: Callable[[ActiveRequest], None] = lambda request: None,
        on_stopped: Callable[[ActiveRequest, SequenceState], None] = lambda request, sequence: None,
        prompt_text: str | None = None,
    ) -> None:
        """on_finished: told once when the last sequence has ended. on_stopped: told when a stop text ended a sequence
        that its engine still runs, while others go on. prompt_text: where it is known beside its tokens."""
        self.spec, self.outlet, self._on_finished, self._on_stopped = spec, outlet, on_finished, on_stopped
        self.prompt_text = prompt_text
        #: Of the prompt's tokens from the second on, where they were asked for; complete before any output.
        self.prompt_logprobs: list[TokenLogprob] = []
        self.sequences = [
            SequenceState(
                index,
                first_choice_index + index,
                outlet,
                output,
                on_end=self._on_sequence_end,
                vocabulary=vocabulary,
            )
            for index in range(spec.n)
        ]
        #: The answer of a pooled request: float32, little endian; there before its sequence ends.
        self.vector: bytes | None = None
        self.num_unfinished = spec.n
        self.num_cached_tokens = 0
        self.is_accepted = False
        #: Nothing more is wanted from any engine.
        self.is_closed = False
        # Where it runs; kept by the scheduler pool.
        self.address: str | None = None
        self.handle = 0
        #: Sequences that its engine counts as load.
        self.num_on_engine = 0
        #: The engine that was lost with this request on it: only taken again if no other lives.
        self.avoided: str | None = None
        #: Engines that were lost with it.
        self.num_moves = 0
        #: Engines that refused it, with their reasons.
        self.rejected_by: dict[str, QuireError] = {}
        #: Timer that ends the wait for an engine.
        self.parked: asyncio.TimerHandle | None = None
        outlet.expect()

    @property
    def has_begun(self) -> bool:
        """An engine accepted it: it may no longer be refused for a full queue."""
        return self.is_accepted

    @property
    def unfinished(self) -> list[SequenceState]:
        """Sequences that an engine still has to run."""
        return [s for s in self.sequences if s.finish is None and not s.is_engine_done]

    @property
    def num_output_tokens(self) -> int:
        """Output tokens of all sequences."""
        return sum(sequence.num_output_tokens for sequence in self.sequences)

    def accept(self, num_cached_tokens: int = 0) -> None:
        """An engine began to compute it. Only the first time counts: a resumed prompt hits its own blocks."""
        if not self.is_accepted:
            self.is_accepted = True
            self.num_cached_tokens = num_cached_tokens
            self.outlet.accept()

    @property
    def is_prompt_scored(self) -> bool:
        """Every log-probability of the prompt that was asked for is here."""
        wanted = self.spec.sampling.num_prompt_logprobs is not None
        return wanted and len(self.prompt_logprobs) == len(self.spec.prompt_token_ids) - 1

    def add_prompt_logprob(
        self, position: int, logprob: float, rank: int, top: tuple[tuple[int, float], ...]
    ) -> None:
        """The next one; those that are here already, since another engine computes the prompt again, are left out."""
        if position == len(self.prompt_logprobs) + 1 < len(self.spec.prompt_token_ids):
            token_id = self.spec.prompt_token_ids[position]
            self.prompt_logprobs.append(TokenLogprob(token_id, logprob, rank, top))

    def fail(self, error: Exception) -> None:
        """It cannot be completed; the client gets `error` after the output that is there."""
        self.outlet.fail(error)

    def _on_sequence_end(self, sequence: SequenceState) -> None:
        self.num_unfinished -= 1
        if self.num_unfinished == 0:
            self._on_finished(self)
        elif not sequence.is_engine_done:
            self._on_stopped(self, sequence)
