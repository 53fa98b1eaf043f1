"""What a worker's gRPC side asks of whatever runs the steps: the real engine or the simulation.

Plain data and one protocol; knows nothing of protobuf, tensors or threads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Protocol

from quire_worker.step import StepMask, StepOutcome, StepPlan


class LoadPhase(IntEnum):
    """Phases of a load, in order; the numbers are those of the contract's enum."""

    QUEUED = 1
    WEIGHTS = 2
    WARM_UP = 3
    READY = 4


class ModelTask(IntEnum):
    """What a model is asked for; the numbers are those of the contract's enum."""

    GENERATE = 1
    EMBED = 2
    CLASSIFY = 3
    SCORE = 4


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """How far a load is: `done` of `total` bytes in phase WEIGHTS, steps otherwise; total 0 is unknown."""

    phase: LoadPhase
    done: int = 0
    total: int = 0


@dataclass(frozen=True, slots=True)
class ModelSource:
    """Which model to load. served_model_name empty: made from the path. dtype: float32, bfloat16, float16, auto."""

    path: str
    served_model_name: str = ""
    dtype: str = "auto"


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """A loaded model as clients must know it; `default_sampling` has only what its generation_config names.

    embedding_size: values of an embedding, 0 if it makes none. labels: a classifier's classes by index.
    """

    id: str
    architecture: str
    max_model_len: int
    vocab_size: int
    eos_token_ids: Sequence[int]
    dtype: str
    num_parameters: int
    created_unix_s: int
    fingerprint: str
    default_sampling: Mapping[str, float | int] = field(default_factory=dict)
    tasks: Sequence[ModelTask] = (ModelTask.GENERATE,)
    embedding_size: int = 0
    labels: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class PoolRequest:
    """How large the pool must be; 0 means the executor's default (block_size: 16, num_blocks: what memory holds)."""

    block_size: int = 0
    max_num_seqs: int = 0
    max_tokens_per_step: int = 0
    max_model_len: int = 0
    num_blocks: int = 0


@dataclass(frozen=True, slots=True)
class PoolDescription:
    """The allocated pool; num_blocks includes the null block 0, block_bytes is over all layers, keys and values."""

    num_blocks: int
    block_size: int
    block_bytes: int
    max_num_seqs: int
    max_tokens_per_step: int
    max_model_len: int


class PoolTooLarge(RuntimeError):
    """The memory does not hold the pool; the message has the numbers."""


Deliver = Callable[[StepOutcome | Exception], None]


class Executor(Protocol):
    """Loads one model, allocates one pool, then runs plans in the order in which they are submitted."""

    @property
    def device(self) -> str:
        """Where it runs, for example `cpu`, `cuda:0` or `simulated`."""
        ...

    def load(self, source: ModelSource, report: Callable[[LoadProgress], None]) -> ModelDescription:
        """Load the model. Blocks, runs on its own thread, once, and again after `unload`; `report` may be called from
        that thread.

        FileNotFoundError: no such files. ValueError: a model that can't be run here.
        """
        ...

    def allocate(self, request: PoolRequest) -> PoolDescription:
        """Allocate the pool. Blocks, runs on its own thread, once, after `load`.

        ValueError: sizes that can't be. PoolTooLarge: not enough memory.
        """
        ...

    def submit(self, plan: StepPlan, deliver: Deliver) -> None:
        """Queue one step; called on the event loop, never blocks.

        `deliver` is called once, on the same event loop, in the order of the plans: with the outcome, with a
        ValueError for a malformed plan, or with any other exception if the device failed.
        """
        ...

    def mask(self, mask: StepMask) -> None:
        """Hand over what masked slots of a submitted plan may sample; called on the event loop, never blocks."""
        ...

    async def reset(self) -> None:
        """Forget every sequence once the plans already submitted have ended; no more masks come for them: those that
        wait for one fail with MasksLost."""
        ...

    def unload(self) -> None:
        """Give the model and the pool back, as if nothing had been loaded. Blocks, runs on its own thread; no sequence
        is known."""
        ...

    def close(self) -> None:
        """End threads and free what is held; queued plans are not run."""
        ...
