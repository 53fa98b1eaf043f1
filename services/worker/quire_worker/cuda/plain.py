"""The kernels of kernel_set.py in plain torch: the reference, on any device. Most of them wait for the device."""

from __future__ import annotations

import torch
from torch.nn.functional import linear, scaled_dot_product_attention, silu

from quire_kernels.adjust_logits.by_slot import BySlot
from quire_kernels.adjust_logits.reference import adjust_logits_reference
from quire_kernels.gpu.rope import Rope
from quire_kernels.gumbel_argmax.reference import gumbel_argmax_reference
from quire_worker.cuda.state import (
    HEADER_SIZE,
    NUM_COLUMNS,
    NUM_DECODES,
    NUM_SEQS,
    RECORD_SIZE,
    DeviceTables,
    SamplingTable,
    StepInputs,
)
from quire_worker.sampling.adjust import scale_and_filter
from quire_worker.step import SamplingParams


class PlainKernels:
    """See KernelSet."""

    max_small_rows = 0
    max_skinny_rows = 0
    is_capturable = False
    overlap = False

    def workspace(
        self,
        max_seqs: int,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        vocab_size: int,
        device: torch.device,
    ) -> None:
        """See KernelSet: nothing is needed."""

    def tokens_of_tile(self, num_heads: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype) -> int:
        """See KernelSet."""
        return 0

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
        values = packed.tolist()
        columns = [values[HEADER_SIZE + i * max_seqs :][:max_seqs] for i in range(NUM_COLUMNS)]
        blocks = values[HEADER_SIZE + NUM_COLUMNS * max_seqs :]
        for row in range(num_rows):
            slot, count, first, num_blocks, offset = (column[row] for column in columns)
            last = first + count
            inputs.query_start_loc[row], inputs.query_start_loc[row + 1] = first, last
            inputs.sample_rows[row] = last - 1
            if row >= values[NUM_SEQS] or slot < 0:
                inputs.token_ids[first:last], inputs.positions[first:last] = 0, 0
                inputs.slot_mapping[first:last] = -1
                inputs.table_rows[row], inputs.seq_lens[row], inputs.decode_lens[row] = 0, 0, 0
                continue
            start = int(tables.num_computed[slot])
            table = tables.block_tables[slot]
            at = -(-start // block_size)
            table[at : at + num_blocks] = packed.new_tensor(blocks[offset : offset + num_blocks])
            positions = torch.arange(start, start + count, device=packed.device)
            inputs.positions[first:last] = positions.int()
            inputs.token_ids[first:last] = tables.token_ids[slot, positions]
            ids = table[positions // block_size].long()
            inputs.slot_mapping[first:last] = ids * block_size + positions % block_size
            inputs.seq_lens[row], inputs.table_rows[row] = start + count, slot
            inputs.decode_lens[row] = start + count if row < values[NUM_DECODES] else 0
            tables.num_computed[slot] = start + count

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
        records = packed[: num_sequences * RECORD_SIZE].view(num_sequences, RECORD_SIZE).tolist()
        for slot, tokens, computed, blocks, token_offset, block_offset, *_ in records:
            tables.token_ids[slot, :tokens] = packed[token_offset : token_offset + tokens]
            tables.block_tables[slot, :blocks] = packed[block_offset : block_offset + blocks]
            tables.num_tokens[slot], tables.num_computed[slot] = tokens, computed

    def embed(self, table: torch.Tensor, token_ids: torch.Tensor, out: torch.Tensor) -> None:
        """See KernelSet."""
        out.copy_(table[token_ids.long()])

    def gather_rows(self, x: torch.Tensor, rows: torch.Tensor, out: torch.Tensor) -> None:
        """See KernelSet."""
        out.copy_(x[rows.long()])

    def add_rms_norm(
        self,
        x: torch.Tensor | None,
        residual: torch.Tensor,
        weight: torch.Tensor,
        eps: float,
        out: torch.Tensor,
    ) -> None:
        """See KernelSet."""
        if x is not None:
            residual += x
        out.copy_(_norm(residual, weight, eps))

    def silu_mul(self, gate_up: torch.Tensor, out: torch.Tensor) -> None:
        """See KernelSet."""
        gate, up = gate_up.chunk(2, dim=-1)
        out.copy_(silu(gate) * up)

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
        product = linear(x if norm is None else _norm(x, norm, eps), weight, bias)
        if gated:
            gate, up = product.chunk(2, dim=-1)
            product = silu(gate) * up
        out.copy_(product if residual is None else product + residual)

    def skinny_linear(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        out: torch.Tensor,
        workspace: None,
        *,
        residual: torch.Tensor | None = None,
        bias: torch.Tensor | None = None,
        gated: bool = False,
    ) -> None:
        """See KernelSet."""
        self.small_linear(x, weight, out, residual=residual, bias=bias, gated=gated)

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
        _, _, kv_heads, block_size, head_dim = pool.shape
        heads = qkv.view(len(qkv), -1, head_dim)
        queries, keys, values = heads.split([num_heads, kv_heads, kv_heads], dim=1)
        heads[:, :num_heads] = _rotate(queries, rope.q_norm, positions, rope)
        keys = _rotate(keys, rope.k_norm, positions, rope)
        written = slot_mapping >= 0
        blocks, offsets = slot_mapping[written] // block_size, slot_mapping[written] % block_size
        _store(pool[:, 0], blocks, offsets, keys[written], kv_scale[0])
        _store(pool[:, 1], blocks, offsets, values[written], kv_scale[1])

    def decode_attention(
        self,
        qkv: torch.Tensor,
        pool: torch.Tensor,
        seq_lens: torch.Tensor,
        table_rows: torch.Tensor,
        block_tables: torch.Tensor,
        out: torch.Tensor,
        workspace: None,
        *,
        num_heads: int,
        scale: float,
        window: int,
        rope: Rope | None,
        kv_scale: tuple[float, float],
        prefix: torch.Tensor | None,
    ) -> None:
        """See KernelSet."""
        if rope is not None:
            block_size = pool.shape[3]
            positions = (seq_lens - 1).clamp(min=0)
            blocks = block_tables[table_rows.long(), (positions // block_size).long()].long()
            slot_mapping = torch.where(seq_lens > 0, blocks * block_size + positions % block_size, -1)
            qkv = qkv.clone()
            self.rope_kv_write(
                qkv, positions, slot_mapping, rope, pool, num_heads=num_heads, kv_scale=kv_scale
            )
        starts = torch.arange(len(qkv) + 1, dtype=torch.int32)
        self.prefill_attention(
            qkv, pool, starts, seq_lens, table_rows, block_tables, out,
            num_heads=num_heads, max_query_len=1, scale=scale, window=window, kv_scale=kv_scale, is_new=False,
            tiles=None,
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
        head_dim, block_size = pool.shape[4], pool.shape[3]
        queries = qkv[:, : num_heads * head_dim].view(len(qkv), num_heads, head_dim)
        starts, lengths, table = query_start_loc.tolist(), seq_lens.tolist(), table_rows.tolist()
        for row, length in enumerate(lengths):
            first, last = starts[row], starts[row + 1]
            if length == 0:
                out[first:last] = 0
                continue
            blocks = block_tables[table[row], : -(-length // block_size)].long()
            keys, values = (
                _held(pool[blocks, kind], kv_scale[kind], qkv.dtype).transpose(0, 1).flatten(1, 2)[:, :length]
                for kind in (0, 1)
            )
            attended = scaled_dot_product_attention(
                queries[first:last].transpose(0, 1)[None], keys[None], values[None],
                attn_mask=_visible(last - first, length, window, qkv.device), scale=scale, enable_gqa=True,
            )  # fmt: skip
            out[first:last] = attended[0].transpose(0, 1).flatten(1)

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
        out.copy_(adjust_logits_reference(logits, slots, by_slot, tables, masks=masks, mask_rows=mask_rows))

    def sample_tokens(
        self,
        logits: torch.Tensor,
        slots: torch.Tensor,
        table: SamplingTable,
        tables: DeviceTables,
        out: torch.Tensor,
        workspace: None,
        *,
        filtered: bool,
    ) -> None:
        """See KernelSet."""
        for row, slot in enumerate(slots.tolist()):
            out[row] = -1
            if slot < 0 or tables.num_computed[slot] != tables.num_tokens[slot]:
                continue
            position = int(tables.num_tokens[slot])
            token_id = _draw(logits[row].float().cpu(), slot, table, position, filtered)
            out[row] = token_id
            tables.token_ids[slot, position] = token_id
            tables.num_tokens[slot] = position + 1


def _draw(logits: torch.Tensor, slot: int, table: SamplingTable, position: int, filtered: bool) -> int:
    temperature = float(table.temperature[slot])
    if temperature == 0.0:
        return int(logits.argmax())
    params = SamplingParams(
        temperature=temperature,
        top_p=float(table.top_p[slot]) if filtered else 1.0,
        top_k=int(table.top_k[slot]) if filtered else 0,
        min_p=float(table.min_p[slot]) if filtered else 0.0,
    )
    row = logits.numpy().copy()
    scale_and_filter(row, params)
    seed = int(table.seed[slot]) % (1 << 64)
    return gumbel_argmax_reference(row, seed, int(table.sequence_index[slot]), position)


def _norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    wide = x.float()
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype) * weight


def _rotate(
    heads: torch.Tensor, norm: torch.Tensor | None, positions: torch.Tensor, rope: Rope
) -> torch.Tensor:
    if norm is not None:
        heads = _norm(heads, norm, rope.eps)
    cos, sin = rope.cos[positions.long()][:, None], rope.sin[positions.long()][:, None]
    first, second = heads.float().chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(heads.dtype)


def _store(
    place: torch.Tensor, blocks: torch.Tensor, offsets: torch.Tensor, values: torch.Tensor, scale: float
) -> None:
    """Put keys or values into the pool as its type has them."""
    if place.dtype == torch.float8_e4m3fn:
        values = (values.float() / scale).clamp(-448.0, 448.0).to(place.dtype)
        # Eight-bit floats can't be put in place by index; their bits can.
        place, values = place.view(torch.uint8), values.view(torch.uint8)
    place[blocks, :, offsets] = values


def _held(content: torch.Tensor, scale: float, dtype: torch.dtype) -> torch.Tensor:
    """What a part of the pool stands for."""
    return (content.float() * scale).to(dtype) if content.dtype == torch.float8_e4m3fn else content


def _visible(num_queries: int, length: int, window: int, device: torch.device) -> torch.Tensor:
    positions = torch.arange(length - num_queries, length, device=device)[:, None]
    keys = torch.arange(length, device=device)[None]
    visible = keys <= positions
    return visible & (keys > positions - window) if window else visible
