"""The kernels of kernel_set.py by quire_kernels' Triton operations."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from quire_kernels.add_rms_norm.op import add_rms_norm
from quire_kernels.adjust_logits.by_slot import BySlot
from quire_kernels.adjust_logits.op import adjust_logits
from quire_kernels.decode_attention.op import DecodeWorkspace, decode_attention
from quire_kernels.gemv.op import MAX_ROWS, gemv
from quire_kernels.gpu.rope import Rope
from quire_kernels.prefill_attention.op import prefill_attention, tokens_of_tile
from quire_kernels.rope_kv_write.gpu import rope_kv_write_gpu
from quire_kernels.rows.op import embed, gather_rows
from quire_kernels.sample.op import SampleWorkspace, sample_tokens
from quire_kernels.silu_mul.op import silu_mul
from quire_kernels.skinny_linear.op import MAX_ROWS as MAX_SKINNY_ROWS
from quire_kernels.skinny_linear.op import SkinnyWorkspace, skinny_linear
from quire_kernels.step_inputs.op import place_sequences, prepare_step
from quire_worker.cuda.state import DeviceTables, SamplingTable, StepInputs


@dataclass(frozen=True, slots=True)
class Workspace:
    """Scratch memory of the operations that need some."""

    decode: DecodeWorkspace
    skinny: SkinnyWorkspace
    sample: SampleWorkspace


class TritonKernels:
    """See KernelSet."""

    max_small_rows = MAX_ROWS
    max_skinny_rows = MAX_SKINNY_ROWS
    is_capturable = True

    def __init__(self) -> None:
        self.overlap = True

    def workspace(
        self,
        max_seqs: int,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        vocab_size: int,
        device: torch.device,
    ) -> Workspace:
        """See KernelSet."""
        return Workspace(
            DecodeWorkspace(device, max_seqs, num_heads, num_kv_heads, head_dim),
            SkinnyWorkspace(device),
            SampleWorkspace(device, max_seqs, vocab_size),
        )

    def tokens_of_tile(self, num_heads: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype) -> int:
        """See KernelSet."""
        is_power = head_dim & (head_dim - 1) == 0
        return tokens_of_tile(num_heads, num_kv_heads, head_dim, dtype.itemsize) if is_power else 0

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
        """See KernelSet."""
        prepare_step(
            packed, tables, inputs, num_rows=num_rows, max_query_len=max_query_len, block_size=block_size,
            pdl=self.overlap,
        )  # fmt: skip

    def place_sequences(
        self,
        packed: torch.Tensor,
        tables: DeviceTables,
        *,
        num_sequences: int,
        max_tokens: int,
        max_blocks: int,
    ) -> None:
        """See KernelSet."""
        place_sequences(
            packed, tables, num_sequences=num_sequences, max_tokens=max_tokens, max_blocks=max_blocks
        )

    def embed(self, table: torch.Tensor, token_ids: torch.Tensor, out: torch.Tensor) -> None:
        """See KernelSet."""
        embed(table, token_ids, out, pdl=self.overlap)

    def gather_rows(self, x: torch.Tensor, rows: torch.Tensor, out: torch.Tensor) -> None:
        """See KernelSet."""
        gather_rows(x, rows, out, pdl=self.overlap)

    def add_rms_norm(
        self,
        x: torch.Tensor | None,
        residual: torch.Tensor,
        weight: torch.Tensor,
        eps: float,
        out: torch.Tensor,
    ) -> None:
        """See KernelSet."""
        add_rms_norm(x, residual, weight, eps, out, pdl=self.overlap)

    def silu_mul(self, gate_up: torch.Tensor, out: torch.Tensor) -> None:
        """See KernelSet."""
        silu_mul(gate_up, out, pdl=self.overlap)

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
        """See KernelSet."""
        gemv(x, weight, out, norm=norm, eps=eps, residual=residual, bias=bias, gated=gated, pdl=self.overlap)

    def skinny_linear(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        out: torch.Tensor,
        workspace: Workspace,
        *,
        residual: torch.Tensor | None = None,
        bias: torch.Tensor | None = None,
        gated: bool = False,
    ) -> None:
        """See KernelSet."""
        skinny_linear(
            x, weight, out, workspace.skinny, residual=residual, bias=bias, gated=gated, pdl=self.overlap
        )

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
        """See KernelSet."""
        rope_kv_write_gpu(
            qkv, positions, slot_mapping, rope, pool, num_heads=num_heads, kv_scale=kv_scale, pdl=self.overlap
        )

    def decode_attention(
        self,
        qkv: torch.Tensor,
        pool: torch.Tensor,
        seq_lens: torch.Tensor,
        table_rows: torch.Tensor,
        block_tables: torch.Tensor,
        out: torch.Tensor,
        workspace: Workspace,
        *,
        num_heads: int,
        scale: float,
        window: int,
        rope: Rope | None,
        kv_scale: tuple[float, float],
        prefix: torch.Tensor | None,
    ) -> None:
        """See KernelSet."""
        # Without rope the new keys come from the launch ahead, which this one would not wait for.
        decode_attention(
            qkv, pool, seq_lens, table_rows, block_tables, out, workspace.decode, num_heads=num_heads,
            scale=scale, window=window, rope=rope, kv_scale=kv_scale, prefix=prefix,
            pdl=self.overlap and rope is not None,
        )  # fmt: skip

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
        """See KernelSet."""
        prefill_attention(
            qkv, pool, query_start_loc, seq_lens, table_rows, block_tables, out, num_heads=num_heads,
            max_query_len=max_query_len, scale=scale, window=window, kv_scale=kv_scale,
            has_own_keys=is_new, tiles=tiles, pdl=self.overlap,
        )  # fmt: skip

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
        """See KernelSet."""
        adjust_logits(logits, slots, by_slot, tables, out, masks=masks, mask_rows=mask_rows, forbids=forbids)

    def sample_tokens(
        self,
        logits: torch.Tensor,
        slots: torch.Tensor,
        table: SamplingTable,
        tables: DeviceTables,
        out: torch.Tensor,
        workspace: Workspace,
        *,
        filtered: bool,
    ) -> None:
        """See KernelSet."""
        sample_tokens(
            logits, slots, table, tables, out, workspace.sample, filtered=filtered, pdl=self.overlap
        )
