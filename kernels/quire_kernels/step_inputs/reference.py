"""prepare_step and place_sequences in plain torch, row by row."""

from __future__ import annotations

import torch

from quire_kernels.step_inputs.kernel import COLUMNS, HEADER, RECORD
from quire_kernels.step_inputs.op import Inputs, Tables


def prepare_step_reference(
    packed: torch.Tensor,
    tables: Tables,
    inputs: Inputs,
    *,
    num_rows: int,
    max_query_len: int,
    block_size: int,
) -> None:
    """See op.prepare_step."""
    del max_query_len
    slots = len(tables.num_tokens)
    values = packed.tolist()
    columns = [values[HEADER + i * slots :][:slots] for i in range(COLUMNS)]
    blocks = values[HEADER + COLUMNS * slots :]
    for row in range(num_rows):
        slot, count, first, num_blocks, offset = (column[row] for column in columns)
        if row >= values[0] or slot < 0:
            at = values[1] + row - values[0]
            _write(inputs, row, at, torch.zeros(1), torch.zeros(1), torch.tensor([-1]), length=0, table_row=0)
            inputs.decode_lens[row] = 0
            continue
        start = int(tables.num_computed[slot])
        held = -(-start // block_size)
        tables.block_tables[slot, held : held + num_blocks] = packed.new_tensor(
            blocks[offset : offset + num_blocks]
        )
        positions = torch.arange(start, start + count, device=packed.device)
        ids = tables.block_tables[slot, positions // block_size].long()
        mapping = ids * block_size + positions % block_size
        tokens = tables.token_ids[slot, positions]
        _write(inputs, row, first, tokens, positions, mapping, length=start + count, table_row=slot)
        inputs.decode_lens[row] = start + count if row < values[2] else 0
        tables.num_computed[slot] = start + count


def _write(
    inputs: Inputs,
    row: int,
    first: int,
    tokens: torch.Tensor,
    positions: torch.Tensor,
    mapping: torch.Tensor,
    *,
    length: int,
    table_row: int,
) -> None:
    last = first + len(positions)
    inputs.token_ids[first:last] = tokens.int()
    inputs.positions[first:last] = positions.int()
    inputs.slot_mapping[first:last] = mapping
    inputs.query_start_loc[row], inputs.query_start_loc[row + 1] = first, last
    inputs.sample_rows[row] = last - 1
    inputs.seq_lens[row], inputs.table_rows[row] = length, table_row


def place_sequences_reference(packed: torch.Tensor, tables: Tables, *, num_sequences: int) -> None:
    """See op.place_sequences."""
    records = packed[: num_sequences * RECORD].view(num_sequences, RECORD).tolist()
    for slot, tokens, computed, blocks, token_offset, block_offset, *_ in records:
        tables.token_ids[slot, :tokens] = packed[token_offset : token_offset + tokens]
        tables.block_tables[slot, :blocks] = packed[block_offset : block_offset + blocks]
        tables.num_tokens[slot], tables.num_computed[slot] = tokens, computed
