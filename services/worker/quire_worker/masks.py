"""The letter box of token masks: the event loop puts them in, the thread that samples waits for those of its step.

Thread-safe; knows neither protobuf nor logits. A mask comes after its step, so that it is computed while the forward
pass runs; when nobody will send any more (the scheduler has gone), whoever waits is told at once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from quire_worker.step import StepMask

Words = NDArray[np.uint32]


class MasksLost(RuntimeError):
    """The step waited for masks, and the stream they would have come through has ended."""


def num_words(vocab_size: int) -> int:
    """Words of 32 bits that hold one bit per token."""
    return -(-vocab_size // 32)


def permitted_ids(words: Words, vocab_size: int) -> NDArray[np.int64]:
    """The token ids that a row of a mask permits, ascending."""
    return np.flatnonzero(np.unpackbits(words.view(np.uint8), count=vocab_size, bitorder="little"))


class MaskBox:
    """Masks by step and slot. Every slot of a step is put once; `wait` takes a step's masks out."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._by_step: dict[int, dict[int, Words]] = {}
        self._is_closed = False

    def put(self, mask: StepMask) -> None:
        """Add rows of one step; from any thread."""
        with self._changed:
            self._by_step.setdefault(mask.step_id, {}).update(zip(mask.slots, mask.words, strict=True))
            self._changed.notify_all()

    def wait(self, step_id: int, slots: Sequence[int]) -> tuple[Mapping[int, Words], int]:
        """The masks of these slots of a step, and how long it took, microseconds. Raises MasksLost after `close`."""
        started = time.perf_counter_ns()
        with self._changed:
            while len(self._by_step.get(step_id, ())) < len(slots):
                if self._is_closed:
                    raise MasksLost(f"step {step_id}: the stream ended before its masks came")
                self._changed.wait()
            return self._by_step.pop(step_id, {}), (time.perf_counter_ns() - started) // 1000

    def try_take(self, step_id: int, slots: Sequence[int]) -> Mapping[int, Words] | None:
        """As `wait`, without waiting: None if some are missing."""
        with self._changed:
            if len(self._by_step.get(step_id, ())) < len(slots):
                return None
            return self._by_step.pop(step_id, {})

    def close(self) -> None:
        """Nothing more comes: waiters fail, present and later ones, until `reset`."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def reset(self) -> None:
        """Forget everything and take masks again."""
        with self._changed:
            self._by_step.clear()
            self._is_closed = False
