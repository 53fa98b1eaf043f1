"""Decode steps as captured CUDA graphs, one pair per batch size: the decoder, and the sampling with or without filters.

A step runs in the smallest captured size that holds it; the rows beyond are padding.
"""

from __future__ import annotations

import functools
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import torch

from quire_worker.cuda.model import DeviceModel
from quire_worker.cuda.operations import StepShape, Stream

T = TypeVar("T")

_SIZES: Final = (1, 2, 4, 8, 16, 24, 32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384, 448, 512)


def sizes_up_to(max_num_seqs: int) -> list[int]:
    """Batch sizes to capture, ascending; the last is max_num_seqs, at most 512."""
    largest = min(max_num_seqs, _SIZES[-1])
    return [*(size for size in _SIZES if size < largest), largest]


@dataclass(frozen=True, slots=True)
class _Captured:
    body: torch.cuda.CUDAGraph
    plain: torch.cuda.CUDAGraph
    filtered: torch.cuda.CUDAGraph
    stream: Stream
    logits: torch.Tensor


class DecodeGraphs:
    """`capture` once, then `run`. Without captures (on a CPU) `size_for` finds none."""

    def __init__(self, model: DeviceModel) -> None:
        self._model = model
        self._captured: dict[int, _Captured] = {}
        self._sizes: list[int] = []

    def size_for(self, num_rows: int) -> int | None:
        """The captured size that a step of so many rows runs in."""
        index = bisect_left(self._sizes, num_rows)
        return self._sizes[index] if index < len(self._sizes) else None

    @torch.inference_mode()
    def capture(self, report: Callable[[int, int], None] = lambda done, total: None) -> None:
        """Capture every size, the largest first so that the smaller ones reuse its memory. Needs a stream of its own
        as the current one. What is in `packed` must be a step of no rows."""
        sizes = sizes_up_to(self._model.limits.max_num_seqs)
        memory = torch.cuda.graph_pool_handle()
        kernels = self._model.loaded.kernels
        kernels.overlap = True
        for done, size in enumerate(reversed(sizes)):
            self._captured[size] = self._capture(size, memory)
            report(done + 1, len(sizes))
        kernels.overlap = False
        self._sizes = sizes

    def compute(self, size: int) -> torch.Tensor:
        """Replay the decoder on the step that is packed; the logits, valid until the next replay of this size."""
        captured = self._captured[size]
        captured.body.replay()
        return captured.logits

    def sample(self, size: int, *, filtered: bool) -> None:
        """Replay the sampling of the logits that `compute` left."""
        captured = self._captured[size]
        (captured.filtered if filtered else captured.plain).replay()

    def _capture(self, size: int, memory: Any) -> _Captured:
        model = self._model
        shape = StepShape(num_tokens=size, num_rows=size, num_decodes=size, max_query_len=1)
        slots = model.packed_slots(size)

        def body() -> tuple[Stream, torch.Tensor]:
            model.prepare(size, 1)
            stream = model.compute(shape)
            return stream, model.logits(stream)

        # Once without capturing: kernels are compiled, and libraries pick theirs.
        _, logits = body()
        for filtered in (False, True):
            model.sample(logits, slots, filtered=filtered)
        whole, (stream, logits) = _captured(body, memory)
        samplers = [
            _captured(functools.partial(model.sample, logits, slots, filtered=value), memory)[0]
            for value in (False, True)
        ]
        return _Captured(whole, samplers[0], samplers[1], stream, logits)


def _captured(launch: Callable[[], T], memory: Any) -> tuple[torch.cuda.CUDAGraph, T]:
    """What `launch` launches, as a graph. (torch.cuda.graph collects garbage at each capture, which adds up.)"""
    graph = torch.cuda.CUDAGraph()
    graph.capture_begin(pool=memory, capture_error_mode="thread_local")
    try:
        result = launch()
    finally:
        graph.capture_end()
    return graph, result
