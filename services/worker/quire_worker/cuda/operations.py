"""A decoder's operations on the device: norms wait until it is known what they can be fused with.

`norm` computes nothing: it says that a linear layer wants its input normed. The fewest rows go through kernels that
norm on the way, add the residual and gate; somewhat more through kernels that do all that but the norm; many through a
residual-add-and-norm kernel and the library's matrix product.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch.nn.functional import linear

from quire_kernels.gpu.rope import Rope
from quire_worker.cuda.fp8_operations import Fp8Operations
from quire_worker.cuda.fp8_weight import Fp8Activations, Fp8Weight
from quire_worker.cuda.kernel_set import KernelSet
from quire_worker.cuda.state import DeviceTables, StepInputs
from quire_worker.models.decoder import DecoderWeights
from quire_worker.models.rope import rope_tables
from quire_worker.models.spec import DecoderSpec

# Below this the library has better products for an output of its own.
_MIN_ROWS_TO_ADD: Final = 1024


@dataclass(slots=True)
class Stream:
    """The residual stream [rows, hidden]; `delta` is still to be added to it."""

    residual: torch.Tensor
    delta: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class Normed:
    """The norm of a stream, not computed yet."""

    stream: Stream
    weight: torch.Tensor


@dataclass(frozen=True, slots=True)
class StepShape:
    """What the host must know of a step to launch it. num_decodes: leading rows of one token each.

    kept_rows: int32, the tokens whose hidden states are wanted after the last layer; None: all. num_cached: tokens of
    the longer rows that were computed before. tiles: for a captured step of any rows, where its list of attention
    tiles will be (step_packing); the other numbers are then the most that it can have, and
    num_decodes is num_rows. prefix: for a captured decode step, where it will say what its rows share.
    """

    num_tokens: int
    num_rows: int
    num_decodes: int
    max_query_len: int
    kept_rows: torch.Tensor | None = None
    num_cached: int = 0
    tiles: torch.Tensor | None = None
    prefix: torch.Tensor | None = None

    @property
    def is_decode(self) -> bool:
        """Whether every row computes one token."""
        return self.num_decodes == self.num_rows and self.tiles is None


@dataclass(frozen=True, slots=True)
class _Views:
    """A step's parts of the inputs, cut once and not in every layer."""

    positions: torch.Tensor
    slot_mapping: torch.Tensor
    decode_lens: torch.Tensor
    decode_rows: torch.Tensor
    query_start_loc: torch.Tensor
    prefill_lens: torch.Tensor
    prefill_rows: torch.Tensor

    @classmethod
    def of(cls, inputs: StepInputs, shape: StepShape) -> _Views:
        first, last, tokens = shape.num_decodes, shape.num_rows, shape.num_tokens
        decode_lens = inputs.seq_lens[:first]
        if shape.tiles is not None:
            first, decode_lens = 0, inputs.decode_lens[:last]
        return cls(
            positions=inputs.positions[:tokens],
            slot_mapping=inputs.slot_mapping[:tokens],
            decode_lens=decode_lens,
            decode_rows=inputs.table_rows[: len(decode_lens)],
            query_start_loc=inputs.query_start_loc[first : last + 1],
            prefill_lens=inputs.seq_lens[first:last],
            prefill_rows=inputs.table_rows[first:last],
        )


class DeviceOperations:
    """See layers.base.Operations. `begin` sets the step; everything is launched on the current stream."""

    def __init__(
        self,
        spec: DecoderSpec,
        weights: DecoderWeights,
        kernels: KernelSet,
        pool_layers: Sequence[torch.Tensor],
        tables: DeviceTables,
        inputs: StepInputs,
        workspace: Any,
        kv_scales: Sequence[tuple[float, float]] = (),
    ) -> None:
        """kv_scales: by layer, what keys and values of an fp8 pool are multiplied by; none: 1."""
        device = tables.num_tokens.device
        self._spec = spec
        self._kernels = kernels
        self._pool = pool_layers
        self._tables = tables
        self._inputs = inputs
        self._workspace = workspace
        self._kv_scales = kv_scales or [(1.0, 1.0)] * len(weights.layers)
        cos, sin = (table.to(device) for table in rope_tables(spec.rope, spec.head_dim, spec.max_model_len))
        self._ropes = [Rope(cos, sin, layer.q_norm, layer.k_norm, spec.norm_eps) for layer in weights.layers]
        self._shape = StepShape(0, 0, 0, 0)
        self._views = _Views.of(inputs, self._shape)
        self._fp8 = Fp8Operations(kernels, workspace, spec.norm_eps, weights.layers)
        self._outputs = [layer.output for layer in weights.layers]

    def begin(self, shape: StepShape) -> None:
        """The step to come; its inputs are written already, or will be by kernels launched before this step's."""
        self._shape = shape
        self._views = _Views.of(self._inputs, shape)

    def embed(self, table: torch.Tensor) -> Stream:
        """See Operations."""
        rows = self._shape.num_tokens
        out = table.new_empty(rows, table.shape[1])
        self._kernels.embed(table, self._inputs.token_ids[:rows], out)
        return Stream(out)

    def norm(self, x: Stream, weight: torch.Tensor) -> Normed:
        """See Operations."""
        return Normed(x, weight)

    def linear(
        self, x: Normed, weight: torch.Tensor | Fp8Weight, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        """See Operations."""
        if isinstance(weight, Fp8Weight):
            return self._fp8.linear(x.stream, x.weight, weight, bias)
        source = x.stream.residual
        if self._is_small(source):
            assert x.stream.delta is None
            out = source.new_empty(len(source), len(weight))
            self._kernels.small_linear(source, weight, out, norm=x.weight, eps=self._spec.norm_eps, bias=bias)
            return out
        hidden = self._normed(x)
        if not self._is_skinny(source):
            return linear(hidden, weight, bias)
        out = source.new_empty(len(source), len(weight))
        self._kernels.skinny_linear(hidden, weight, out, self._workspace, bias=bias)
        return out

    def gated_mlp(self, x: Normed, weight: torch.Tensor | Fp8Weight) -> torch.Tensor | Fp8Activations:
        """See Operations."""
        if isinstance(weight, Fp8Weight):
            return self._fp8.gated(x.stream, x.weight, weight)
        source = x.stream.residual
        out = source.new_empty(len(source), len(weight) // 2)
        if self._is_small(source):
            assert x.stream.delta is None
            self._kernels.small_linear(
                source, weight, out, norm=x.weight, eps=self._spec.norm_eps, gated=True
            )
        elif self._is_skinny(source):
            self._kernels.skinny_linear(self._normed(x), weight, out, self._workspace, gated=True)
        else:
            self._kernels.silu_mul(linear(self._normed(x), weight), out)
        return out

    def add_linear(
        self,
        residual: Stream,
        x: torch.Tensor | Fp8Activations,
        weight: torch.Tensor | Fp8Weight,
        bias: torch.Tensor | None = None,
    ) -> Stream:
        """See Operations."""
        assert residual.delta is None
        kept = self._shape.kept_rows
        if kept is not None and len(x) != len(residual.residual):
            # The last layer's attention has left out the rows that nobody wants.
            fewer = residual.residual.new_empty(len(kept), residual.residual.shape[1])
            self._kernels.gather_rows(residual.residual, kept, fewer)
            residual = Stream(fewer)
        target = residual.residual
        if isinstance(weight, Fp8Weight):
            delta = self._fp8.add(target, x, weight, bias)
            return residual if delta is None else Stream(target, delta)
        assert not isinstance(x, Fp8Activations)
        if self._is_small(x):
            self._kernels.small_linear(x, weight, target, residual=target, bias=bias)
        elif self._is_skinny(x):
            self._kernels.skinny_linear(x, weight, target, self._workspace, residual=target, bias=bias)
        elif bias is None and len(x) >= _MIN_ROWS_TO_ADD:
            # The library's product adds the residual on the way.
            target.addmm_(x, weight.t())
        else:
            return Stream(target, linear(x, weight, bias))
        return residual

    def attention(
        self, layer: int, qkv: torch.Tensor, q_norm: torch.Tensor | None, k_norm: torch.Tensor | None
    ) -> torch.Tensor:
        """See Operations."""
        is_fp8 = isinstance(self._outputs[layer], Fp8Weight) and self._fp8.is_narrow(len(qkv))
        dtype = self._fp8.narrow_dtype(qkv.dtype) if is_fp8 else qkv.dtype
        size = self._spec.num_heads * self._spec.head_dim
        out = torch.empty(len(qkv), size, device=qkv.device, dtype=dtype)
        if self._shape.is_decode:
            self._decode(layer, qkv, out, self._ropes[layer])
            return out
        self._mixed(layer, qkv, out)
        kept = self._shape.kept_rows
        if kept is None or layer != self._spec.num_layers - 1 or len(kept) == len(out):
            return out
        fewer = out.new_empty(len(kept), out.shape[1])
        self._kernels.gather_rows(out, kept, fewer)
        return fewer

    def hidden(self, x: Stream, weight: torch.Tensor, rows: torch.Tensor | None) -> torch.Tensor:
        """The normed hidden states of some rows (None: all) of what the last layer left."""
        source, delta = x.residual, x.delta
        if rows is None:
            x.delta = None
        else:
            # Copies: the stream can be read again.
            source = source[rows.long()]
            delta = None if delta is None else delta[rows.long()]
        out = torch.empty_like(source)
        self._kernels.add_rms_norm(delta, source, weight, self._spec.norm_eps, out)
        return out

    def _decode(self, layer: int, qkv: torch.Tensor, out: torch.Tensor, rope: Rope | None) -> None:
        views = self._views
        self._kernels.decode_attention(
            qkv, self._pool[layer], views.decode_lens, views.decode_rows, self._tables.block_tables, out,
            self._workspace, num_heads=self._spec.num_heads, scale=self._spec.scale, window=self._spec.window(layer),
            rope=rope, kv_scale=self._kv_scales[layer], prefix=self._shape.prefix,
        )  # fmt: skip

    def _mixed(self, layer: int, qkv: torch.Tensor, out: torch.Tensor) -> None:
        spec, shape, views, pool = self._spec, self._shape, self._views, self._pool[layer]
        self._kernels.rope_kv_write(
            qkv, views.positions, views.slot_mapping, self._ropes[layer], pool, num_heads=spec.num_heads,
            kv_scale=self._kv_scales[layer],
        )  # fmt: skip
        if shape.num_decodes:
            # In a captured step this clears the rows of longer runs, which the next launch writes.
            self._decode(layer, qkv[: shape.num_decodes], out[: shape.num_decodes], None)
        self._kernels.prefill_attention(
            qkv, pool, views.query_start_loc, views.prefill_lens, views.prefill_rows, self._tables.block_tables, out,
            num_heads=spec.num_heads, max_query_len=shape.max_query_len, scale=spec.scale, window=spec.window(layer),
            kv_scale=self._kv_scales[layer], is_new=shape.num_cached <= shape.num_tokens, tiles=shape.tiles,
        )  # fmt: skip

    def _is_small(self, x: torch.Tensor) -> bool:
        return len(x) <= self._kernels.max_small_rows

    def _is_skinny(self, x: torch.Tensor) -> bool:
        return len(x) <= self._kernels.max_skinny_rows

    def _normed(self, x: Normed) -> torch.Tensor:
        stream = x.stream
        out = torch.empty_like(stream.residual)
        self._kernels.add_rms_norm(stream.delta, stream.residual, x.weight, self._spec.norm_eps, out)
        stream.delta = None
        return out
