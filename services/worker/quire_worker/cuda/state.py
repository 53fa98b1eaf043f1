"""What lives on the device between steps, by slot, and what a step computes from: plain holders of tensors.

Legend: M slots, T tokens of a step, S rows (sequences) of a step. Padding rows have slot -1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch

from quire_worker.models.spec import DecoderSpec
from quire_worker.slots import SlotLimits

# Fields of the packed step's header; the rest of it is reserved.
NUM_SEQS: Final = 0
NUM_TOKENS: Final = 1
NUM_DECODES: Final = 2
HEADER_SIZE: Final = 8
NUM_COLUMNS: Final = 5
# int32 values of one record of a sequence to be placed.
RECORD_SIZE: Final = 8


@dataclass(frozen=True, slots=True)
class DeviceTables:
    """token_ids int32 [M, max_model_len + 1]; num_tokens, num_computed int32 [M]; block_tables int32 [M, blocks]."""

    token_ids: torch.Tensor
    num_tokens: torch.Tensor
    num_computed: torch.Tensor
    block_tables: torch.Tensor


@dataclass(frozen=True, slots=True)
class SamplingTable:
    """By slot [M]: temperature, top_p, min_p float32; top_k, sequence_index int32; seed int64, the bits of a uint64."""

    temperature: torch.Tensor
    top_p: torch.Tensor
    min_p: torch.Tensor
    top_k: torch.Tensor
    seed: torch.Tensor
    sequence_index: torch.Tensor


@dataclass(frozen=True, slots=True)
class StepInputs:
    """token_ids, positions int32 [T]; slot_mapping int64 [T], -1: not written; query_start_loc int32 [S + 1]; seq_lens,
    table_rows, sample_rows int32 [S]: length after the step, row of the block tables, last of the row's tokens;
    decode_lens int32 [S]: seq_lens of the leading rows of one token, 0 of the others."""

    token_ids: torch.Tensor
    positions: torch.Tensor
    slot_mapping: torch.Tensor
    query_start_loc: torch.Tensor
    seq_lens: torch.Tensor
    table_rows: torch.Tensor
    sample_rows: torch.Tensor
    decode_lens: torch.Tensor


def make_tables(limits: SlotLimits, device: torch.device) -> DeviceTables:
    """Empty tables."""
    rows = limits.max_num_seqs

    def zeros(*shape: int) -> torch.Tensor:
        return torch.zeros(shape, dtype=torch.int32, device=device)

    return DeviceTables(
        token_ids=zeros(rows, limits.max_model_len + 1),
        num_tokens=zeros(rows),
        num_computed=zeros(rows),
        block_tables=zeros(rows, limits.max_blocks_per_seq),
    )


def make_sampling_table(rows: int, device: torch.device) -> SamplingTable:
    """Every slot greedy."""

    def zeros(dtype: torch.dtype) -> torch.Tensor:
        return torch.zeros(rows, dtype=dtype, device=device)

    return SamplingTable(
        temperature=zeros(torch.float32),
        top_p=torch.ones(rows, dtype=torch.float32, device=device),
        min_p=zeros(torch.float32),
        top_k=zeros(torch.int32),
        seed=zeros(torch.int64),
        sequence_index=zeros(torch.int32),
    )


def make_inputs(max_tokens: int, max_seqs: int, device: torch.device) -> StepInputs:
    """Buffers for the largest step."""

    def zeros(size: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
        return torch.zeros(size, dtype=dtype, device=device)

    return StepInputs(
        token_ids=zeros(max_tokens),
        positions=zeros(max_tokens),
        slot_mapping=zeros(max_tokens, torch.int64),
        query_start_loc=zeros(max_seqs + 1),
        seq_lens=zeros(max_seqs),
        table_rows=zeros(max_seqs),
        sample_rows=zeros(max_seqs),
        decode_lens=zeros(max_seqs),
    )


def make_pool(
    spec: DecoderSpec, num_blocks: int, block_size: int, device: torch.device, dtype: torch.dtype
) -> torch.Tensor:
    """The block pool [layers, num_blocks, 2, kv heads, block_size, head_dim]: keys and values both lie as
    [block_size, head_dim], unlike in the CPU's pool."""
    shape = (spec.num_layers, num_blocks, 2, spec.num_kv_heads, block_size, spec.head_dim)
    return torch.zeros(shape, device=device, dtype=dtype)
