"""The kernels that a forward pass is made of: what each must do. `plain.py` has them in torch.

All write into tensors they are given. Legend as in state.py; H query heads, G key and value heads, D head_dim.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch

from quire_kernels.adjust_logits.by_slot import BySlot
from quire_kernels.gpu.rope import Rope
from quire_worker.cuda.state import DeviceTables, SamplingTable, StepInputs


class KernelSet(Protocol):
    """Stateless but for what `workspace` made."""

    # Most rows for which `small_linear` is meant; 0: never.
    max_small_rows: int
    # Most rows for which `skinny_linear` is meant; at most max_small_rows: never.
    max_skinny_rows: int
    # Whether nothing waits for the device, so that steps can be captured.
    is_capturable: bool
    # Whether launches may begin before the one ahead has ended (they wait by themselves for what it writes).
    overlap: bool

    def workspace(
        self,
        max_seqs: int,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        vocab_size: int,
        device: torch.device,
    ) -> Any:
        """Scratch memory for decode_attention, skinny_linear and sample_tokens, one for all layers."""
        ...

    def tokens_of_tile(self, num_heads: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype) -> int:
        """How many tokens of one run a listed tile of prefill_attention has; 0: tiles can't be listed."""
        ...

    def prepare_step(
        self,
        packed: torch.Tensor,
        tables: DeviceTables,
        inputs: StepInputs,
        *,
        max_seqs: int,
        num_rows: int,
        max_query_len: int,
        block_size: int,
    ) -> None:
        """Append the step's blocks to the tables at entry ceil(num_computed / block_size), write its inputs, move
        num_computed on. packed: see step_packing."""
        ...

    def place_sequences(
        self,
        packed: torch.Tensor,
        tables: DeviceTables,
        *,
        num_sequences: int,
        max_tokens: int,
        max_blocks: int,
    ) -> None:
        """Write new sequences into the tables. packed: records (see step_packing), then their data."""
        ...

    def embed(self, table: torch.Tensor, token_ids: torch.Tensor, out: torch.Tensor) -> None:
        """Rows of the table."""
        ...

    def gather_rows(self, x: torch.Tensor, rows: torch.Tensor, out: torch.Tensor) -> None:
        """out[i] = x[rows[i]]."""
        ...

    def add_rms_norm(
        self,
        x: torch.Tensor | None,
        residual: torch.Tensor,
        weight: torch.Tensor,
        eps: float,
        out: torch.Tensor,
    ) -> None:
        """residual += x (unless None), in place; out = norm(residual) * weight."""
        ...

    def silu_mul(self, gate_up: torch.Tensor, out: torch.Tensor) -> None:
        """out = silu(first half of the columns) * second half."""
        ...

    def small_linear(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        out: torch.Tensor,
        *,
        norm: torch.Tensor | None = None,
        eps: float = 0.0,
        residual: torch.Tensor | None = None,
        bias: torch.Tensor | None = None,
        gated: bool = False,
    ) -> None:
        """out = [norm of] x W^T [+ bias] [+ residual]; gated: silu(x G^T) * (x U^T), weight [2 I, K]."""
        ...

    def skinny_linear(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        out: torch.Tensor,
        workspace: Any,
        *,
        residual: torch.Tensor | None = None,
        bias: torch.Tensor | None = None,
        gated: bool = False,
    ) -> None:
        """As small_linear without a norm; out may be the residual."""
        ...

    def rope_kv_write(
        self,
        qkv: torch.Tensor,
        positions: torch.Tensor,
        slot_mapping: torch.Tensor,
        rope: Rope,
        pool: torch.Tensor,
        *,
        num_heads: int,
        kv_scale: tuple[float, float],
    ) -> None:
        """Norm and rotate queries in place; norm, rotate and store keys; store values. kv_scale: what keys and values
        of an fp8 pool are multiplied by."""
        ...

    def decode_attention(
        self,
        qkv: torch.Tensor,
        pool: torch.Tensor,
        seq_lens: torch.Tensor,
        table_rows: torch.Tensor,
        block_tables: torch.Tensor,
        out: torch.Tensor,
        workspace: Any,
        *,
        num_heads: int,
        scale: float,
        window: int,
        rope: Rope | None,
        kv_scale: tuple[float, float],
        prefix: torch.Tensor | None,
    ) -> None:
        """One token a row. With rope: raw projections come in, and the new keys and values are stored too. prefix:
        see StepShape; never given to kernels that list no tiles."""
        ...

    def prefill_attention(
        self,
        qkv: torch.Tensor,
        pool: torch.Tensor,
        query_start_loc: torch.Tensor,
        seq_lens: torch.Tensor,
        table_rows: torch.Tensor,
        block_tables: torch.Tensor,
        out: torch.Tensor,
        *,
        num_heads: int,
        max_query_len: int,
        scale: float,
        window: int,
        kv_scale: tuple[float, float],
        is_new: bool,
        tiles: torch.Tensor | None,
    ) -> None:
        """Ragged rows whose queries are rotated and whose keys and values are stored already. is_new: most keys are
        those of the step's own tokens. tiles: see StepShape."""
        ...

    def adjust_logits(
        self,
        logits: torch.Tensor,
        slots: torch.Tensor,
        by_slot: BySlot,
        tables: DeviceTables,
        out: torch.Tensor,
        *,
        masks: torch.Tensor | None,
        mask_rows: torch.Tensor | None,
        forbids: bool,
    ) -> None:
        """out float32 = logits after biases, penalties, masks and what is forbidden now; see the operation."""
        ...

    def sample_tokens(
        self,
        logits: torch.Tensor,
        slots: torch.Tensor,
        table: SamplingTable,
        tables: DeviceTables,
        out: torch.Tensor,
        workspace: Any,
        *,
        filtered: bool,
    ) -> None:
        """A token per row, appended to its slot's history; out -1 and nothing appended for pads and for rows that have
        uncomputed tokens. filtered: min_p, top_k and top_p are looked at."""
        ...
