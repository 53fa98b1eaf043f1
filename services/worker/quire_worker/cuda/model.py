"""The decoder bound to its memory on the device: one step from the packed plan to appended tokens, in two parts.

Launches only; waits for nothing (but where the kernels are the plain ones).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn.functional import linear

from quire_worker.cuda.kernel_set import KernelSet
from quire_worker.cuda.operations import DeviceOperations, StepShape, Stream
from quire_worker.cuda.state import (
    HEADER_SIZE,
    DeviceTables,
    SamplingTable,
    StepInputs,
    make_inputs,
    make_sampling_table,
    make_tables,
)
from quire_worker.cuda.step_packing import prefix_size, prefix_start, tiles_start
from quire_worker.models.decoder import DecoderWeights, forward
from quire_worker.models.spec import DecoderSpec
from quire_worker.slots import SlotLimits


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model whose weights are on the device, and what computes with them. kv_dtype: of the block pool; None: dtype.
    kv_scales: by layer, what keys and values of an fp8 pool are multiplied by; none: 1."""

    spec: DecoderSpec
    weights: DecoderWeights
    kernels: KernelSet
    device: torch.device
    dtype: torch.dtype
    kv_dtype: torch.dtype | None = None
    kv_scales: tuple[tuple[float, float], ...] = ()


class DeviceModel:
    """Tables, inputs, pool and weights joined. `packed` is where the staging area's plans arrive."""

    def __init__(
        self, loaded: Loaded, limits: SlotLimits, max_tokens: int, pool: torch.Tensor, packed: torch.Tensor
    ) -> None:
        spec, device, rows = loaded.spec, loaded.device, limits.max_num_seqs
        self.loaded = loaded
        self.limits = limits
        self.pool = pool
        self.packed = packed
        self.tables: DeviceTables = make_tables(limits, device)
        self.sampling: SamplingTable = make_sampling_table(rows, device)
        self.inputs: StepInputs = make_inputs(max_tokens + rows, rows, device)
        # Sampled tokens, -1 where a row sampled none.
        self.chosen = torch.zeros(rows, dtype=torch.int32, device=device)
        # Tokens of an attention tile; 0: only decode steps can be captured.
        self.tile_tokens = 0
        if pool.dtype == loaded.dtype and not any(spec.window(layer) for layer in range(spec.num_layers)):
            self.tile_tokens = loaded.kernels.tokens_of_tile(
                spec.num_heads, spec.num_kv_heads, spec.head_dim, loaded.dtype
            )
        self._workspace = loaded.kernels.workspace(
            rows, spec.num_heads, spec.num_kv_heads, spec.head_dim, spec.vocab_size, device
        )
        self._ops = DeviceOperations(
            spec, loaded.weights, loaded.kernels, pool.unbind(0), self.tables, self.inputs, self._workspace,
            loaded.kv_scales,
        )  # fmt: skip

    def prepare(self, num_rows: int, max_query_len: int) -> None:
        """Expand the packed step into the inputs; rows beyond those of the plan are padding."""
        self.loaded.kernels.prepare_step(
            self.packed, self.tables, self.inputs, max_seqs=self.limits.max_num_seqs, num_rows=num_rows,
            max_query_len=max_query_len, block_size=self.limits.block_size,
        )  # fmt: skip

    def compute(self, shape: StepShape) -> Stream:
        """All layers. The stream has the shape's kept rows, or all."""
        self._ops.begin(shape)
        stream: Stream = forward(self.loaded.spec, self.loaded.weights, self._ops)
        return stream

    def new_logits(self, num_rows: int) -> torch.Tensor:
        """Room for logits."""
        return torch.empty(
            num_rows, self.loaded.spec.vocab_size, device=self.loaded.device, dtype=self.loaded.dtype
        )

    def logits(
        self, stream: Stream, rows: torch.Tensor | None = None, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Raw logits of some rows of the stream (None: all), [rows, vocab_size]; in `out` if given."""
        weights, kernels = self.loaded.weights, self.loaded.kernels
        count = len(stream.residual) if rows is None else len(rows)
        if rows is out is None and stream.delta is None and count <= kernels.max_small_rows:
            out = torch.empty(
                count, self.loaded.spec.vocab_size, device=self.loaded.device, dtype=torch.float32
            )
            kernels.small_linear(
                stream.residual, weights.head, out, norm=weights.final_norm, eps=self.loaded.spec.norm_eps
            )
            return out
        hidden = self._ops.hidden(stream, weights.final_norm, rows)
        if out is not None:
            return torch.mm(hidden, weights.head.t(), out=out)
        return linear(hidden, weights.head)

    def sample(self, logits: torch.Tensor, slots: torch.Tensor, *, filtered: bool) -> None:
        """A token per row into `chosen`, appended to the slots' histories."""
        self.loaded.kernels.sample_tokens(
            logits,
            slots,
            self.sampling,
            self.tables,
            self.chosen[: len(slots)],
            self._workspace,
            filtered=filtered,
        )

    def packed_slots(self, num_rows: int) -> torch.Tensor:
        """The packed step's column of slots."""
        return self.packed[HEADER_SIZE : HEADER_SIZE + num_rows]

    def packed_prefix(self) -> torch.Tensor:
        """What the packed step's rows share."""
        start = prefix_start(self.limits)
        return self.packed[start : start + prefix_size(self.limits)]

    def packed_tiles(self, most: int) -> torch.Tensor:
        """The packed step's list of attention tiles, of which there are at most so many."""
        start = tiles_start(self.limits)
        return self.packed[start : start + most + 1]
