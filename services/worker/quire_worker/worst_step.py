"""Memory of the largest step on the host: run it once on a pool of two blocks and see what it took.

Knows runners and plans; what the figure means for the pool is sizing.py's business.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final, Self

import numpy as np

from quire_worker.runner import ModelRunner
from quire_worker.sizing import StepSizes
from quire_worker.slots import SlotLimits
from quire_worker.step import NewSequence, SamplingParams, StepPlan

_STATUS: Final = Path("/proc/self/status")
_CLEAR_REFS: Final = Path("/proc/self/clear_refs")
# Writing this to clear_refs sets the peak back to what is resident now.
_RESET_PEAK: Final = "5"
# A step of more tokens would take too long for a start: beyond these, the figure is extended in a straight line.
_MAX_RUN_TOKENS: Final = 512
# The pool's blocks: the null block, and one that every sequence writes to.
_NUM_BLOCKS: Final = 2


class PeakMemory:
    """How far this process's resident memory rises above what it was at the start of the `with` block.

    Where the kernel does not let the peak be reset, a rise below an earlier peak shows only as far as it lasts.
    """

    def __init__(self) -> None:
        self._start_bytes = 0
        self._is_reset = False
        self.rise_bytes = 0

    def __enter__(self) -> Self:
        _give_back_unused()
        try:
            _CLEAR_REFS.write_text(_RESET_PEAK, encoding="ascii")
            self._is_reset = True
        except OSError:
            self._is_reset = False
        self._start_bytes = _status_bytes("VmRSS")
        return self

    def __exit__(self, *exc_info: object) -> None:
        end = _status_bytes("VmHWM" if self._is_reset else "VmRSS")
        self.rise_bytes = max(0, end - self._start_bytes)


def worst_step_bytes(build: Callable[[SlotLimits], ModelRunner], sizes: StepSizes) -> int:
    """Bytes that a runner's own buffers and its largest step take: as many tokens and sequences as a step may have,
    each sequence sampled with penalties and log-probabilities, one also with those of its prompt.

    build: makes a runner with a pool of limits.num_blocks blocks; it is dropped before this returns.
    """
    run = replace(
        sizes, max_tokens_per_step=min(sizes.max_tokens_per_step, max(_MAX_RUN_TOKENS, sizes.max_num_seqs))
    )
    whole = _measure(build, run)
    left = sizes.max_tokens_per_step - run.max_tokens_per_step
    if left == 0:
        return whole
    num_half = run.max_tokens_per_step // 2
    half = _measure(build, replace(run, max_tokens_per_step=num_half))
    return whole + max(0, whole - half) * left // (run.max_tokens_per_step - num_half)


def _measure(build: Callable[[SlotLimits], ModelRunner], sizes: StepSizes) -> int:
    limits = SlotLimits(sizes.max_num_seqs, sizes.max_model_len, sizes.block_size, _NUM_BLOCKS)
    with PeakMemory() as memory:
        runner = build(limits)
        runner.execute(_largest_plan(sizes))
    return memory.rise_bytes


def _largest_plan(sizes: StepSizes) -> StepPlan:
    lengths = _lengths(sizes)
    # What the sequences read and write in their one block does not matter.
    sequences = [
        NewSequence(
            slot,
            np.zeros(length, dtype=np.int32),
            length,
            0,
            [1] * -(-length // sizes.block_size),
            _asking(slot == 0),
        )
        for slot, length in enumerate(lengths)
    ]
    return StepPlan(0, list(range(len(lengths))), lengths, new_sequences=sequences)


def _lengths(sizes: StepSizes) -> list[int]:
    """Tokens of each sequence. The first has just so many that its prompt's logits fill their matrix once; the second
    takes what is left, since long sequences are the rule where steps are full."""
    count = min(sizes.max_num_seqs, sizes.max_tokens_per_step)
    lengths = [1] * count
    left = sizes.max_tokens_per_step - count
    for index, wish in enumerate((sizes.max_num_seqs, *[left] * (count - 1))):
        more = min(wish, left, sizes.max_model_len - 1 - lengths[index])
        lengths[index] += more
        left -= more
    return lengths


def _asking(scores_prompt: bool) -> SamplingParams:
    return SamplingParams(
        top_p=0.9,
        seed=1,
        frequency_penalty=0.1,
        num_logprobs=20,
        num_prompt_logprobs=20 if scores_prompt else None,
    )


def _give_back_unused() -> None:
    """Hand what the allocator keeps for later back to the system: what is taken from it would not show as a rise."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _status_bytes(key: str) -> int:
    for line in _STATUS.read_text(encoding="ascii").splitlines():
        name, _, value = line.partition(":")
        if name == key:
            return int(value.split()[0]) * 1024
    raise RuntimeError(f"{_STATUS} has no {key}")
