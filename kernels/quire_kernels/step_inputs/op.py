"""prepare_step, place_sequences: a step's plan, as one packed buffer, into the slots' tables and the step's inputs.

Tables and inputs are anything with the tensors named below as attributes.
"""

from __future__ import annotations

from typing import Protocol

import torch

from quire_kernels.gpu.launch import check_device, pdl_options
from quire_kernels.step_inputs import kernel
from quire_kernels.step_inputs.kernel import COLUMNS, HEADER


class Tables(Protocol):
    """By slot, int32: token_ids [M, tokens], num_tokens [M], num_computed [M], block_tables [M, blocks]."""

    @property
    def token_ids(self) -> torch.Tensor: ...  # noqa: D102
    @property
    def num_tokens(self) -> torch.Tensor: ...  # noqa: D102
    @property
    def num_computed(self) -> torch.Tensor: ...  # noqa: D102
    @property
    def block_tables(self) -> torch.Tensor: ...  # noqa: D102


class Inputs(Protocol):
    """Of a step, int32 but slot_mapping (int64): token_ids, positions, slot_mapping [T]; query_start_loc [S + 1];
    seq_lens, table_rows, sample_rows, decode_lens [S]."""

    @property
    def token_ids(self) -> torch.Tensor: ...  # noqa: D102
    @property
    def positions(self) -> torch.Tensor: ...  # noqa: D102
    @property
    def slot_mapping(self) -> torch.Tensor: ...  # noqa: D102
    @property
    def query_start_loc(self) -> torch.Tensor: ...  # noqa: D102
    @property
    def seq_lens(self) -> torch.Tensor: ...  # noqa: D102
    @property
    def table_rows(self) -> torch.Tensor: ...  # noqa: D102
    @property
    def sample_rows(self) -> torch.Tensor: ...  # noqa: D102
    @property
    def decode_lens(self) -> torch.Tensor: ...  # noqa: D102


def prepare_step(
    packed: torch.Tensor,
    tables: Tables,
    inputs: Inputs,
    *,
    num_rows: int,
    max_query_len: int,
    block_size: int,
    pdl: bool = False,
) -> None:
    """Append new blocks to the tables, advance num_computed, and write the inputs of num_rows rows.

    packed: int32; [0] sequences, [1] tokens of the step, [2] leading rows of one token, whose lengths are decode_lens
    (0 for the other rows); from 8 on columns of M entries each: slots (-1: a row that
    pads), num_new_tokens, query starts, num_new_blocks, offsets into the list of new blocks, which follows. A row that
    pads becomes one token of id 0, length 0, slot_mapping -1, behind the step's tokens. max_query_len: no row has more
    new tokens. A row's new blocks belong right behind those
    that its computed tokens need.
    """
    slots = len(tables.num_tokens)
    if packed.dtype != torch.int32 or packed.dim() != 1 or len(packed) < HEADER + COLUMNS * slots:
        raise ValueError(
            f"packed must be int32 with room for {slots} slots, got {packed.dtype} {list(packed.shape)}"
        )
    if not 0 <= num_rows <= len(inputs.seq_lens):
        raise ValueError(f"num_rows must be within 0..{len(inputs.seq_lens)}, got {num_rows}")
    check_device("prepare_step", packed, tables.token_ids, inputs.token_ids)
    if num_rows:
        kernel.launch_prepare(
            packed, tables, inputs, num_rows=num_rows, max_query_len=max(1, max_query_len), block_size=block_size,
            options=pdl_options(pdl),
        )  # fmt: skip


def place_sequences(
    packed: torch.Tensor, tables: Tables, *, num_sequences: int, max_tokens: int, max_blocks: int
) -> None:
    """Put sequences into their slots.

    packed: int32, num_sequences records of 8: slot, num_tokens, num_computed, num_blocks, offset of the token ids,
    offset of the block ids, 0, 0; offsets count from the buffer's start. max_tokens, max_blocks: no sequence has more.
    """
    if packed.dtype != torch.int32 or len(packed) < num_sequences * kernel.RECORD:
        raise ValueError(
            f"packed must be int32 with {num_sequences} records, got {packed.dtype} {list(packed.shape)}"
        )
    check_device("place_sequences", packed, tables.token_ids)
    if num_sequences:
        kernel.launch_place(
            packed, tables, num_sequences=num_sequences, longest=max(1, max_tokens, max_blocks)
        )
