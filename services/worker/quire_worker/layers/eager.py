"""The eager way: every operation is a torch call, at every step, on any device. The reference and the fallback."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import linear, silu

from quire_kernels.linear.rows import WeightRows
from quire_worker.attention.base import AttentionBackend, AttentionInputs
from quire_worker.input_batch import InputBatch
from quire_worker.kv_cache import BlockPool
from quire_worker.models.decoder import DecoderWeights, forward
from quire_worker.models.rope import rope_tables
from quire_worker.models.spec import DecoderSpec


class TensorPlacement:
    """Weights as tensors on the device, fused ones written part by part into their place."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self._device = device
        self._dtype = dtype

    def fused(self, parts: Sequence[WeightRows]) -> torch.Tensor:
        """See Placement."""
        rows = sum(part.num_outputs for part in parts)
        place = torch.empty(rows, parts[0].num_inputs, device=self._device, dtype=self._dtype)
        start = 0
        for part in parts:
            place[start : start + part.num_outputs] = torch.from_numpy(np.array(part.to_float32()))
            start += part.num_outputs
        return place

    def gated(self, gate: WeightRows, up: WeightRows) -> torch.Tensor:
        """See Placement."""
        return self.fused([gate, up])

    def vector(self, values: NDArray[np.float32]) -> torch.Tensor:
        """See Placement."""
        return torch.from_numpy(np.array(values)).to(self._device, self._dtype)


class _EagerOperations:
    """Operations (see layers/base.py) on tensors [tokens, features]."""

    def __init__(
        self,
        spec: DecoderSpec,
        pool: BlockPool,
        backend: AttentionBackend,
        tables: tuple[torch.Tensor, torch.Tensor],
    ) -> None:
        self._spec = spec
        self._pool = pool
        self._backend = backend
        self._cos_table, self._sin_table = tables
        self._token_ids = torch.empty(0)
        self._cos = self._sin = self._token_ids
        self._inputs: AttentionInputs | None = None

    def begin(self, token_ids: torch.Tensor, positions: torch.Tensor, inputs: AttentionInputs) -> None:
        """Set the step's inputs."""
        self._token_ids = token_ids
        self._cos = self._cos_table[positions][:, None]
        self._sin = self._sin_table[positions][:, None]
        self._inputs = inputs

    def embed(self, table: torch.Tensor) -> torch.Tensor:
        return table[self._token_ids]

    def norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        scaled = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self._spec.norm_eps)
        return scaled.to(x.dtype) * weight

    def linear(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        return linear(x, weight, bias)

    def gated_mlp(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        gate, up = linear(x, weight).chunk(2, dim=-1)
        return silu(gate) * up

    def add_linear(
        self, residual: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        return residual + linear(x, weight, bias)

    def attention(
        self, layer: int, qkv: torch.Tensor, q_norm: torch.Tensor | None, k_norm: torch.Tensor | None
    ) -> torch.Tensor:
        spec, inputs, pool = self._spec, self._inputs, self._pool.layers[layer]
        assert inputs is not None
        heads = qkv.view(len(qkv), -1, spec.head_dim)
        queries, keys, values = heads.split([spec.num_heads, spec.num_kv_heads, spec.num_kv_heads], dim=1)
        if q_norm is not None and k_norm is not None:
            queries, keys = self.norm(queries, q_norm), self.norm(keys, k_norm)
        self._backend.write(self._rotate(keys), values, pool, inputs)
        return self._backend.attend(
            self._rotate(queries), pool, inputs, scale=spec.scale, window=spec.window(layer)
        )

    def _rotate(self, heads: torch.Tensor) -> torch.Tensor:
        first, second = heads.float().chunk(2, dim=-1)
        rotated = (first * self._cos - second * self._sin, second * self._cos + first * self._sin)
        return torch.cat(rotated, dim=-1).to(heads.dtype)


class EagerForward:
    """A decoder in plain torch, with the same face as ProgramForward."""

    def __init__(
        self,
        spec: DecoderSpec,
        weights: DecoderWeights,
        batch: InputBatch,
        pool: BlockPool,
        block_tables: NDArray[np.int32],
        backend: AttentionBackend,
    ) -> None:
        self._spec = spec
        self._weights = weights
        self._batch = batch
        self._block_tables = block_tables
        self._device = pool.tensor.device
        cos, sin = rope_tables(spec.rope, spec.head_dim, spec.max_model_len)
        self._ops = _EagerOperations(spec, pool, backend, (cos.to(self._device), sin.to(self._device)))
        self._hidden = torch.empty(0)
        self._logits: NDArray[np.float32] = np.zeros((0, spec.vocab_size), dtype=np.float32)

    @torch.inference_mode()
    def run(self) -> None:
        """Compute the step that the batch describes."""
        batch = self._batch
        tokens, seqs = int(batch.num_tokens[0]), int(batch.num_seqs[0])
        inputs = AttentionInputs(
            query_start_loc=self._on_device(batch.query_start_loc[: seqs + 1]),
            seq_lens=self._on_device(batch.seq_lens[:seqs]),
            block_tables=self._on_device(self._block_tables[batch.table_rows[:seqs]]),
            slot_mapping=self._on_device(batch.slot_mapping[:tokens]),
            query_starts=batch.query_start_loc[: seqs + 1].tolist(),
            lengths=batch.seq_lens[:seqs].tolist(),
        )
        token_ids = self._on_device(batch.token_ids[:tokens]).long()
        self._ops.begin(token_ids, self._on_device(batch.positions[:tokens]).long(), inputs)
        self._hidden = forward(self._spec, self._weights, self._ops)
        self._logits = self.logits_of(batch.sample_rows[: int(batch.num_samples[0])])

    def greedy(self) -> NDArray[np.int32]:
        """Of each sampling row, the token id with the largest logit."""
        choice: NDArray[np.int32] = np.argmax(self._logits, axis=1).astype(np.int32)
        return choice

    def logits(self) -> NDArray[np.float32]:
        """Raw logits of the sampling rows, [num_samples, vocab_size]."""
        return self._logits

    @torch.inference_mode()
    def logits_of(self, rows: NDArray[np.int32]) -> NDArray[np.float32]:
        """Raw logits of any rows of the step just run."""
        if len(rows) == 0:
            return np.zeros((0, self._spec.vocab_size), dtype=np.float32)
        selected = self._hidden[self._on_device(rows).long()]
        normed = self._ops.norm(selected, self._weights.final_norm)
        return linear(normed, self._weights.head).float().cpu().numpy()

    @torch.inference_mode()
    def hidden_of(self, rows: NDArray[np.int32]) -> NDArray[np.float32]:
        """Hidden states of any rows of the step just run, behind the final norm."""
        selected = self._hidden[self._on_device(rows).long()]
        normed: NDArray[np.float32] = self._ops.norm(selected, self._weights.final_norm).float().cpu().numpy()
        return normed

    def _on_device(self, array: NDArray[np.generic]) -> torch.Tensor:
        return torch.from_numpy(np.array(array)).to(self._device)
