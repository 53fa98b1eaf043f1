"""The CPU way: a decoder's operations are recorded once into a program of tasks and replayed at every step.

Values are the buffers that the tasks read and write; there is one buffer per purpose, reused by every layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quire_kernels.argmax import cpu as argmax
from quire_kernels.cpu.memory import zeros
from quire_kernels.cpu.target import TARGET
from quire_kernels.cpu.team import BoundTask, Program
from quire_kernels.embedding import cpu as embedding
from quire_kernels.linear import cpu as linear
from quire_kernels.linear.packing import PackedLinear, pack, pack_gated
from quire_kernels.linear.rows import WeightRows
from quire_kernels.linear.steps import LinearSteps
from quire_kernels.paged_attention import cpu as paged_attention
from quire_kernels.rms_norm import cpu as rms_norm
from quire_kernels.rope_kv_write import cpu as rope_kv_write
from quire_worker.input_batch import InputBatch
from quire_worker.kv_cache import BlockPool
from quire_worker.models.decoder import DecoderWeights, forward
from quire_worker.models.rope import rope_tables
from quire_worker.models.spec import DecoderSpec

Buffer = NDArray[np.float32]


class PackedPlacement:
    """Weights go straight into tiles, in the form in which the file has them."""

    def fused(self, parts: Sequence[WeightRows]) -> PackedLinear:
        """See Placement."""
        return pack(parts)

    def gated(self, gate: WeightRows, up: WeightRows) -> PackedLinear:
        """See Placement."""
        return pack_gated(gate, up)

    def vector(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        """See Placement."""
        place = zeros(len(values), np.float32)
        place[:] = values
        return place


def unsupported_reason(spec: DecoderSpec) -> str:
    """Why the CPU kernels can't run this decoder; empty if they can."""
    if spec.head_dim % TARGET.tile_columns:
        return f"head_dim {spec.head_dim} is no multiple of {TARGET.tile_columns}"
    return ""


@dataclass(frozen=True, slots=True)
class Shared:
    """What every recorded operation reads: the step's inputs, the pool, the slots' block tables, the threads."""

    batch: InputBatch
    pool: BlockPool
    block_tables: NDArray[np.int32]
    num_threads: int


class _Recorder:
    """Operations (see layers/base.py) that append tasks instead of computing."""

    def __init__(self, spec: DecoderSpec, weights: DecoderWeights, shared: Shared) -> None:
        self._spec = spec
        self._shared = shared
        self.steps: list[BoundTask] = []
        self._rows = shared.batch.num_tokens
        tokens = shared.batch.max_tokens
        first = weights.layers[0]
        self.x = _buffer(
            tokens, max(spec.hidden_size, first.output.padded_outputs, first.down.padded_outputs)
        )
        self._hidden = _buffer(tokens, spec.hidden_size)
        self._qkv = _buffer(tokens, first.qkv.padded_outputs)
        self._attended = _buffer(tokens, spec.num_heads * spec.head_dim)
        self._gated = _buffer(tokens, first.gate_up.padded_outputs)
        widest = max(spec.hidden_size, spec.intermediate_size, spec.num_heads * spec.head_dim)
        self.products = LinearSteps(max(tokens, shared.batch.max_seqs), widest, shared.num_threads)
        self._attention_room = paged_attention.scratch(
            shared.num_threads, spec.num_heads // spec.num_kv_heads, spec.head_dim
        )
        cos, sin = rope_tables(spec.rope, spec.head_dim, spec.max_model_len)
        self._cos, self._sin = cos.numpy(), sin.numpy()
        self._biases: list[Buffer] = []

    def embed(self, table: PackedLinear) -> Buffer:
        self.steps.append(embedding.bind(table, self._shared.batch.token_ids, self.x, self._rows))
        return self.x

    def norm(self, x: Buffer, weight: Buffer) -> Buffer:
        self.steps.append(rms_norm.bind(x, weight, self._spec.norm_eps, self._hidden, self._rows))
        return self._hidden

    def linear(self, x: Buffer, weight: PackedLinear, bias: Buffer | None = None) -> Buffer:
        self._linear(weight, x, self._qkv, linear.STORE, bias)
        return self._qkv

    def gated_mlp(self, x: Buffer, weight: PackedLinear) -> Buffer:
        self._linear(weight, x, self._gated, linear.GATED_SILU, None)
        return self._gated

    def add_linear(
        self, residual: Buffer, x: Buffer, weight: PackedLinear, bias: Buffer | None = None
    ) -> Buffer:
        self._linear(weight, x, residual, linear.ADD, bias)
        return residual

    def attention(self, layer: int, qkv: Buffer, q_norm: Buffer | None, k_norm: Buffer | None) -> Buffer:
        spec, batch = self._spec, self._shared.batch
        pool = self._shared.pool.layers[layer].numpy()
        self.steps.append(
            rope_kv_write.bind(
                qkv, batch.positions, batch.slot_mapping, self._cos, self._sin, pool, self._rows,
                num_heads=spec.num_heads, q_norm=q_norm, k_norm=k_norm, eps=spec.norm_eps,
            )
        )  # fmt: skip
        self.steps.append(
            paged_attention.bind(
                qkv, self._attended, pool, batch.query_start_loc, batch.seq_lens, batch.table_rows,
                self._shared.block_tables, batch.num_seqs, self._attention_room, num_heads=spec.num_heads,
                scale=spec.scale, window=spec.window(layer),
            )
        )  # fmt: skip
        return self._attended

    def _linear(
        self, weight: PackedLinear, x: Buffer, out: Buffer, epilogue: int, bias: Buffer | None
    ) -> None:
        if bias is not None:
            padded = zeros(weight.padded_outputs, np.float32)
            padded[: len(bias)] = bias
            self._biases.append(padded)
            bias = padded
        self.steps += self.products.bind(weight, x, out, self._rows, epilogue=epilogue, bias=bias)


class ProgramForward:
    """A decoder on the CPU kernels. `run` leaves logits and the greedy choice of the sampling rows in its buffers."""

    def __init__(self, spec: DecoderSpec, weights: DecoderWeights, shared: Shared) -> None:
        recorder = _Recorder(spec, weights, shared)
        batch = shared.batch
        self._hidden = hidden = forward(spec, weights, recorder)
        normed = _buffer(batch.max_seqs, spec.hidden_size)
        self._logits = _buffer(batch.max_seqs, weights.head.padded_outputs)
        self._greedy = zeros(batch.max_seqs, np.int32)
        self._vocab_size, self._norm_eps = spec.vocab_size, np.float32(spec.norm_eps)
        self._final_norm = weights.final_norm[: spec.hidden_size]
        head = [
            rms_norm.bind(
                hidden,
                weights.final_norm,
                spec.norm_eps,
                normed,
                batch.num_samples,
                selection=batch.sample_rows,
            ),
            *recorder.products.bind(weights.head, normed, self._logits, batch.num_samples),
            argmax.bind(self._logits, spec.vocab_size, self._greedy, batch.num_samples),
        ]
        self._batch = batch
        self._kept = (weights, shared, recorder)
        self._step = Program([*recorder.steps, *head], shared.num_threads)
        self._head = Program(head, shared.num_threads)

    def run(self) -> None:
        """Compute the step that the batch describes."""
        self._step.run()

    def greedy(self) -> NDArray[np.int32]:
        """Of each sampling row, the token id with the largest logit."""
        return self._greedy[: int(self._batch.num_samples[0])]

    def logits(self) -> Buffer:
        """Raw logits of the sampling rows, [num_samples, vocab_size]; overwritten by the next call of anything."""
        return self._logits[: int(self._batch.num_samples[0]), : self._vocab_size]

    def logits_of(self, rows: NDArray[np.int32]) -> Buffer:
        """Raw logits of any rows of the step just run, at most max_seqs; moves what `logits` shows."""
        self._batch.sample_rows[: len(rows)] = rows
        self._batch.num_samples[0] = len(rows)
        self._head.run()
        return self.logits()

    def hidden_of(self, rows: NDArray[np.int32]) -> Buffer:
        """Hidden states of any rows of the step just run, behind the final norm: [num_rows, hidden_size]."""
        x = self._hidden[rows, : len(self._final_norm)]
        scale = np.sqrt(np.mean(x * x, axis=1, keepdims=True) + self._norm_eps)
        normed: Buffer = x / scale * self._final_norm
        return normed


def _buffer(rows: int, columns: int) -> Buffer:
    """Room for the surplus rows of the last tile, and a width that keeps rows on cache lines."""
    return zeros((rows + TARGET.max_tile_rows, -(-columns // 16) * 16), np.float32)
