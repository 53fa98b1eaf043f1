"""Seeded plans for tests and benchmarks of step_inputs."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from quire_kernels.sample.cases import SlotTables
from quire_kernels.step_inputs.kernel import COLUMNS, HEADER, RECORD

_SLOTS = 8
_LONGEST = 3000


@dataclass(frozen=True, slots=True)
class StepTensors:
    """A step's inputs, as op.Inputs."""

    token_ids: torch.Tensor
    positions: torch.Tensor
    slot_mapping: torch.Tensor
    query_start_loc: torch.Tensor
    seq_lens: torch.Tensor
    table_rows: torch.Tensor
    sample_rows: torch.Tensor
    decode_lens: torch.Tensor


def slot_tables(device: str, block_size: int = 16) -> SlotTables:
    """Random tokens and blocks in every slot."""
    generator = torch.Generator().manual_seed(1)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randint(1, 1 << 20, shape, generator=generator, dtype=torch.int32).to(device)

    blocks = draw(_SLOTS, -(-_LONGEST // block_size))
    return SlotTables(draw(_SLOTS, _LONGEST + 1), draw(_SLOTS), draw(_SLOTS) % 50, blocks)


@dataclass(frozen=True, slots=True)
class StepCase:
    """rows of (slot, tokens computed, new tokens, new blocks); pads: rows of the launch beyond these."""

    name: str
    rows: tuple[tuple[int, int, int, int], ...]
    pads: int = 0
    block_size: int = 16

    def __str__(self) -> str:
        return self.name

    @property
    def num_rows(self) -> int:
        """Rows of the launch."""
        return len(self.rows) + self.pads

    @property
    def max_query_len(self) -> int:
        """Most new tokens of a row."""
        return max([1, *(count for _, _, count, _ in self.rows)])

    def build(self, device: str) -> tuple[torch.Tensor, SlotTables, StepTensors]:
        """The packed plan (columns beyond the rows are garbage), the tables, and poisoned inputs."""
        tables = slot_tables(device, self.block_size)
        packed = torch.full((HEADER + COLUMNS * _SLOTS,), 3, dtype=torch.int32)
        packed[0], packed[1] = len(self.rows), sum(count for _, _, count, _ in self.rows)
        columns = packed[HEADER:].view(COLUMNS, _SLOTS)
        first = offset = 0
        for row, (slot, computed, count, blocks) in enumerate(self.rows):
            columns[:, row] = torch.tensor([slot, count, first, blocks, offset], dtype=torch.int32)
            tables.num_computed[slot] = computed
            first, offset = first + count, offset + blocks
        packed = torch.cat([packed, torch.arange(1, offset + 1, dtype=torch.int32) * 7]).to(device)

        def poison(size: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
            return torch.full((size,), -99, dtype=dtype, device=device)

        tokens = first + self.pads + 4
        inputs = StepTensors(
            poison(tokens), poison(tokens), poison(tokens, torch.int64), poison(_SLOTS + 1), poison(_SLOTS),
            poison(_SLOTS), poison(_SLOTS), poison(_SLOTS),
        )  # fmt: skip
        return packed, tables, inputs


@dataclass(frozen=True, slots=True)
class PlaceCase:
    """Sequences of (slot, tokens, computed tokens, blocks)."""

    sequences: tuple[tuple[int, int, int, int], ...]

    def build(self, device: str) -> tuple[torch.Tensor, SlotTables]:
        """The packed records and tables with other content."""
        records, data = [], []
        offset = RECORD * len(self.sequences)
        for slot, tokens, computed, blocks in self.sequences:
            records += [slot, tokens, computed, blocks, offset, offset + tokens, 0, 0]
            data += list(range(offset, offset + tokens + blocks))
            offset += tokens + blocks
        return torch.tensor(records + data, dtype=torch.int32, device=device), slot_tables(device)


CASES = [
    StepCase("one decode", ((2, 17, 1, 0),)),
    StepCase("decodes, one with a new block, and pads", ((5, 16, 1, 1), (0, 40, 1, 0), (7, 0, 1, 1)), pads=3),
    StepCase("only pads", (), pads=2),
    StepCase("prefill of many tiles", ((1, 0, 700, 44),)),
    StepCase(
        "mixed", ((6, 32, 1, 1), (2, 99, 1, 0), (3, 0, 600, 38), (4, 256, 300, 19), (0, 10, 7, 1)), pads=1
    ),
    StepCase("blocks ahead of need", ((1, 0, 20, 140),)),
    StepCase("blocks of 32", ((1, 31, 40, 2), (2, 64, 1, 1)), block_size=32),
]
