"""Seeded slots for tests and benchmarks of adjust_logits."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from quire_kernels.adjust_logits.by_slot import (
    ALLOWED,
    BIAS,
    CHUNK,
    FORBIDDEN,
    PENALTIES,
    BySlot,
    make_by_slot,
)
from quire_kernels.sample.cases import SlotTables


@dataclass(frozen=True, slots=True)
class AdjustCase:
    """rows over a vocabulary; every second slot has the flags. tight: masks leave few tokens, so that what is forbidden
    is all that is left in some rows."""

    name: str
    rows: int
    vocab_size: int
    flags: int = 0
    masks: bool = False
    tight: bool = False

    def __str__(self) -> str:
        return self.name

    def inputs(self, dtype: torch.dtype, device: str) -> dict[str, Any]:
        """Arguments of the operation but for out. One row has no slot."""
        generator = torch.Generator().manual_seed(len(self.name))
        slots = torch.arange(self.rows - 1, -1, -1, dtype=torch.int32)
        if self.rows > 2:
            slots[1] = -1
        inputs = {
            "logits": (torch.randn(self.rows, self.vocab_size, generator=generator) * 3).to(dtype).to(device),
            "slots": slots.to(device), "by_slot": self._by_slot(device, generator), "tables": self._tables(device),
        }  # fmt: skip
        if self.masks:
            words = self._words(max(1, self.rows // 2), generator)
            rows = torch.full((self.rows,), -1, dtype=torch.int32)
            rows[::2] = torch.arange(self.rows + 1)[: len(rows[::2])].int() % len(words)
            inputs |= {"masks": words.to(device), "mask_rows": rows.to(device)}
        return inputs

    def _tables(self, device: str) -> SlotTables:
        """Slot i has 12 + i tokens, with many repeats."""
        known = torch.arange(self.rows, dtype=torch.int32) + 12
        tokens = (
            torch.arange(self.rows)[:, None] * 5 + torch.arange(self.rows + 20)[None] % 6 * 7
        ) % self.vocab_size
        empty = torch.zeros(self.rows, 1, dtype=torch.int32)
        return SlotTables(*(part.to(device) for part in (tokens.int(), known, known.clone(), empty)))

    def _words(self, count: int, generator: torch.Generator) -> torch.Tensor:
        if self.tight:
            words = torch.zeros(count, -(-self.vocab_size // 32), dtype=torch.int32)
            words[:, 0] = 0b1110
            return words
        return torch.randint(
            -(1 << 31), (1 << 31) - 1, (count, -(-self.vocab_size // 32)), generator=generator
        ).int()

    def _by_slot(self, device: str, generator: torch.Generator) -> BySlot:
        slots, vocab = self.rows, self.vocab_size
        held = make_by_slot(slots, vocab, "cpu")
        held.flags[::2] = self.flags
        held.penalties[:] = torch.tensor([1.3, 0.4, 0.7])
        held.num_prompt[:] = 5
        held = replace(
            held, counts=torch.zeros(slots, vocab, dtype=torch.int32), allowed=self._words(slots, generator)
        )
        count = min(100, vocab)
        ids = torch.zeros(slots, count, dtype=torch.int32)
        for slot in range(slots):
            ids[slot] = torch.randperm(vocab, generator=generator)[:count]
        held = replace(held, bias_ids=ids, bias_values=torch.randn(slots, count, generator=generator))
        held.bias_lengths[:] = torch.arange(slots).int() * 37 % (count + 1)
        held = replace(held, ending=torch.tensor([[1, 2, 3]] * slots, dtype=torch.int32).reshape(slots, 3))
        held.ending_lengths[:] = 3
        # Some slots are below it, some are not.
        held.min_until[:] = 12 + slots // 2
        return self._with_bad(held, device)

    def _with_bad(self, held: BySlot, device: str) -> BySlot:
        """Bad sequences of one token, of two that the output's end begins, of two that it does not, of too many."""
        tables, slots = self._tables("cpu"), self.rows
        tokens, starts = torch.zeros(slots, 32, dtype=torch.int32), torch.zeros(slots, 5, dtype=torch.int32)
        for slot in range(slots):
            known = int(tables.num_tokens[slot])
            last = tables.token_ids[slot, known - 2 : known].tolist()
            parts = [[3], [*last, 2], [last[0] + 1, last[1], 4 % self.vocab_size], [0] * 20]
            tokens[slot, : sum(map(len, parts))] = torch.tensor([token for part in parts for token in part])
            starts[slot] = torch.tensor([0, 1, 4, 7, 27])
        held.bad_lengths[:], held.bad_longest[:] = 4, 19
        held = replace(held, bad_tokens=tokens, bad_starts=starts)
        return BySlot(*(getattr(held, name).to(device) for name in BySlot.__slots__))


ALL = BIAS | PENALTIES | ALLOWED | FORBIDDEN
CASES = [
    AdjustCase("no row", 0, 100),
    AdjustCase("nothing to do", 3, 300),
    AdjustCase("bias", 5, 300, flags=BIAS),
    AdjustCase("bias over chunks", 5, 2 * CHUNK + 77, flags=BIAS),
    AdjustCase("penalties", 5, CHUNK + 5, flags=PENALTIES),
    AdjustCase("allowed", 5, 300, flags=ALLOWED),
    AdjustCase("forbidden", 9, 300, flags=FORBIDDEN),
    AdjustCase("masks", 5, CHUNK + 50, masks=True),
    AdjustCase("everything", 9, CHUNK + 331, flags=ALL, masks=True),
    AdjustCase("nothing left", 9, 300, flags=ALL, masks=True, tight=True),
]
