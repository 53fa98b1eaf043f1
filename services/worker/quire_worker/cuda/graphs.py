"""Steps as captured CUDA graphs, three per size: the decoder, and the sampling with or without filters.

Decode steps have a size per number of rows. Steps with prompts have one per number of tokens and most rows, up to the
size at which the device is busy for longer than launching takes: their kernels find out on the device what each row is
(see step_packing). A step runs in the smallest captured size that holds it; rows and tokens beyond are padding.
"""

from __future__ import annotations

import functools
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import torch

from quire_worker.cuda.columns import StepColumns
from quire_worker.cuda.model import DeviceModel
from quire_worker.cuda.operations import StepShape
from quire_worker.cuda.shared_prefix import MIN_ROWS
from quire_worker.models.spec import DecoderSpec

T = TypeVar("T")

# Tokens of steps with prompts; with each the fewest rows that are captured, and from _MIN_FULL on the most.
_MIXED_TOKENS: Final = (
    64, 128, 192, 256, 320, 384, 448, 512, 576, 640, 704, 768, 896, 1024, 1280, 1536, 1792, 2048, 2560, 3072, 3584, 4096
)  # fmt: skip
_FEW_ROWS: Final = 32
_MAX_TOKENS_OF_FEW_ROWS: Final = 1024
# Computed tokens of a step's prompts from which on the kernel that a graph has for them is not the best.
_MAX_CACHED: Final = 4096
# One H200: launching a layer's kernels one by one, and the bf16 products that take as long.
_LAUNCH_S_PER_LAYER: Final = 300e-6
_PRODUCTS_PER_S: Final = 300e12

_SIZES: Final = (1, 2, 4, 8, 16, 24, 32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384, 448, 512)


def sizes_up_to(max_num_seqs: int) -> list[int]:
    """Batch sizes to capture, ascending; the last is max_num_seqs, at most 512."""
    largest = min(max_num_seqs, _SIZES[-1])
    return [*(size for size in _SIZES if size < largest), largest]


@dataclass(frozen=True, slots=True)
class Size:
    """What a graph was captured for: this many tokens in at most so many rows; equal: one each, and then perhaps rows
    that share a prefix."""

    num_tokens: int
    num_rows: int
    has_prefix: bool = False


def mixed_sizes(spec: DecoderSpec, max_num_seqs: int, max_tokens: int) -> list[Size]:
    """Sizes of steps with prompts to capture for a model, ascending."""
    layer = spec.hidden_size * (spec.qkv_size + spec.num_heads * spec.head_dim + 3 * spec.intermediate_size)
    most = min(max_tokens, _LAUNCH_S_PER_LAYER * _PRODUCTS_PER_S / layer)
    few = min(_FEW_ROWS, max_num_seqs)
    sizes = []
    for tokens in _MIXED_TOKENS:
        if tokens <= most and few < tokens <= _MAX_TOKENS_OF_FEW_ROWS:
            sizes.append(Size(tokens, few))
        if tokens <= most and few < max_num_seqs < tokens:
            sizes.append(Size(tokens, max_num_seqs))
    return sizes


@dataclass(frozen=True, slots=True)
class _Captured:
    body: torch.cuda.CUDAGraph
    plain: torch.cuda.CUDAGraph
    filtered: torch.cuda.CUDAGraph
    logits: torch.Tensor


class StepGraphs:
    """`capture` once, then `run`. Without captures (on a CPU) `size_for` finds none."""

    def __init__(self, model: DeviceModel, max_tokens: int) -> None:
        self._model = model
        self._max_tokens = max_tokens
        self._captured: dict[Size, _Captured] = {}
        self._decode_rows: list[int] = []
        self._mixed: list[Size] = []

    def size_for(self, columns: StepColumns, *, has_prefix: bool = False) -> Size | None:
        """The captured size that a step runs in; has_prefix: its rows share one."""
        rows = len(columns.slots)
        if columns.num_leading_decodes == rows:
            index = bisect_left(self._decode_rows, rows)
            if not rows or index == len(self._decode_rows):
                return None
            return Size(self._decode_rows[index], self._decode_rows[index], has_prefix)
        tokens = columns.num_tokens
        # Few enough to be looked through; the cached tokens of a long prompt are better read by another kernel.
        if int(columns.starts[columns.num_leading_decodes :].sum()) > _MAX_CACHED:
            return None
        fits = (size for size in self._mixed if size.num_tokens >= tokens and size.num_rows >= rows)
        return next(fits, None)

    @torch.inference_mode()
    def capture(self, report: Callable[[int, int], None] = lambda done, total: None) -> None:
        """Capture every size, the largest first so that the smaller ones reuse its memory. Needs a stream of its own
        as the current one. What is in `packed` must be a step of no rows."""
        model = self._model
        decode_rows = sizes_up_to(model.limits.max_num_seqs)
        mixed = self._mixed_sizes()
        memory = torch.cuda.graph_pool_handle()
        # Steps of so many rows take turns with one tensor.
        logits = {rows: model.new_logits(rows) for rows in {size.num_rows for size in mixed}}
        total = len(decode_rows) + len(mixed)
        for done, size in enumerate(reversed(mixed)):
            self._captured[size] = self._capture(size, self._mixed_body(size, logits[size.num_rows]), memory)
            report(done + 1, total)
        for done, rows in enumerate(reversed(decode_rows)):
            self._captured[Size(rows, rows)] = self._capture(
                Size(rows, rows), self._decode_body(rows), memory
            )
            if self.can_share and rows >= MIN_ROWS:
                size = Size(rows, rows, has_prefix=True)
                self._captured[size] = self._capture(size, self._prefix_body(rows), memory)
            report(len(mixed) + done + 1, total)
        self._decode_rows, self._mixed = decode_rows, mixed

    def compute(self, size: Size) -> torch.Tensor:
        """Replay the decoder on the step that is packed; the logits, valid until the next step."""
        captured = self._captured[size]
        captured.body.replay()
        return captured.logits

    def sample(self, size: Size, *, filtered: bool) -> None:
        """Replay the sampling of the logits that `compute` left."""
        captured = self._captured[size]
        (captured.filtered if filtered else captured.plain).replay()

    @property
    def can_share(self) -> bool:
        """Whether there are, or will be, graphs for rows that share a prefix.

        Not with head norms: on one H200, the one run of such a model's shared steps ended in an illegal access whose
        cause is not found yet (docs/performance-gpu.md).
        """
        return bool(self._model.tile_tokens) and not self._model.loaded.spec.qk_norm

    def _mixed_sizes(self) -> list[Size]:
        model = self._model
        if not model.tile_tokens:
            return []
        return mixed_sizes(model.loaded.spec, model.limits.max_num_seqs, self._max_tokens)

    def _decode_body(self, rows: int, prefix: torch.Tensor | None = None) -> Callable[[], torch.Tensor]:
        shape = StepShape(num_tokens=rows, num_rows=rows, num_decodes=rows, max_query_len=1, prefix=prefix)

        def body() -> torch.Tensor:
            self._model.prepare(rows, 1)
            return self._model.logits(self._model.compute(shape))

        return body

    def _prefix_body(self, rows: int) -> Callable[[], torch.Tensor]:
        return self._decode_body(rows, self._model.packed_prefix())

    def _mixed_body(self, size: Size, logits: torch.Tensor) -> Callable[[], torch.Tensor]:
        model, tokens, rows = self._model, size.num_tokens, size.num_rows
        most_tiles = rows + tokens // model.tile_tokens
        shape = StepShape(
            num_tokens=tokens, num_rows=rows, num_decodes=rows, max_query_len=tokens,
            kept_rows=model.inputs.sample_rows[:rows], tiles=model.packed_tiles(most_tiles),
        )  # fmt: skip

        def body() -> torch.Tensor:
            # Tokens beyond the step's are stored nowhere.
            model.inputs.slot_mapping[:tokens].fill_(-1)
            model.prepare(rows, tokens)
            return model.logits(model.compute(shape), out=logits)

        return body

    def _capture(self, size: Size, body: Callable[[], torch.Tensor], memory: Any) -> _Captured:
        model = self._model
        slots = model.packed_slots(size.num_rows)
        # Once without capturing: kernels are compiled, and libraries pick theirs.
        logits = body()
        for filtered in (False, True):
            model.sample(logits, slots, filtered=filtered)
        whole, logits = _captured(body, memory)
        samplers = [
            _captured(functools.partial(model.sample, logits, slots, filtered=value), memory)[0]
            for value in (False, True)
        ]
        return _Captured(whole, samplers[0], samplers[1], logits)


def _captured(launch: Callable[[], T], memory: Any) -> tuple[torch.cuda.CUDAGraph, T]:
    """What `launch` launches, as a graph. (torch.cuda.graph collects garbage at each capture, which adds up.)"""
    graph = torch.cuda.CUDAGraph()
    graph.capture_begin(pool=memory, capture_error_mode="thread_local")
    try:
        result = launch()
    finally:
        graph.capture_end()
    return graph, result
