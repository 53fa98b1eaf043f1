"""Seeded inputs for tests and benchmarks of sample."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class SlotTables:
    """Token histories of slots, as step_inputs.op.Tables."""

    token_ids: torch.Tensor
    num_tokens: torch.Tensor
    num_computed: torch.Tensor
    block_tables: torch.Tensor


@dataclass(frozen=True, slots=True)
class SlotParameters:
    """Sampling parameters of slots, as op.Parameters."""

    temperature: torch.Tensor
    top_p: torch.Tensor
    min_p: torch.Tensor
    top_k: torch.Tensor
    seed: torch.Tensor
    sequence_index: torch.Tensor


@dataclass(frozen=True, slots=True)
class SampleCase:
    """rows over a vocabulary, all with the same filters but seeds of their own; levels: values are drawn from so few
    that many are equal."""

    name: str
    rows: int
    vocab_size: int
    temperature: float = 0.7
    top_p: float = 1.0
    min_p: float = 0.0
    top_k: int = 0
    levels: int = 0

    def __str__(self) -> str:
        return self.name

    def logits(self, dtype: torch.dtype, device: str) -> torch.Tensor:
        """[rows, vocab_size]."""
        generator = torch.Generator().manual_seed(self.rows + self.vocab_size)
        if self.levels:
            drawn = torch.randint(self.levels, (self.rows, self.vocab_size), generator=generator).float()
        else:
            drawn = torch.randn(self.rows, self.vocab_size, generator=generator) * 3
        return drawn.to(dtype).to(device)

    def parameters(self, slots: int, device: str) -> SlotParameters:
        """The same filters for every slot; seeds use all 64 bits."""
        generator = torch.Generator().manual_seed(self.rows)

        def filled(value: float, dtype: torch.dtype = torch.float32) -> torch.Tensor:
            return torch.full((slots,), value, dtype=dtype, device=device)

        return SlotParameters(
            temperature=filled(self.temperature), top_p=filled(self.top_p), min_p=filled(self.min_p),
            top_k=filled(self.top_k, torch.int32),
            seed=torch.randint(-(1 << 63), (1 << 63) - 1, (slots,), generator=generator).to(device),
            sequence_index=torch.arange(slots, dtype=torch.int32, device=device) % 3,
        )  # fmt: skip

    def tables(self, slots: int, device: str) -> SlotTables:
        """Slot i has i + 5 tokens, all computed."""
        known = torch.arange(slots, dtype=torch.int32, device=device) + 5
        empty = torch.zeros(slots, slots + 8, dtype=torch.int32, device=device)
        return SlotTables(
            empty, known, known.clone(), torch.zeros(slots, 1, dtype=torch.int32, device=device)
        )


CASES = [
    SampleCase("no row", 0, 100),
    SampleCase("one token to choose from", 1, 1),
    SampleCase("greedy", 5, 9001, temperature=0.0),
    SampleCase("greedy among equals", 5, 5000, temperature=0.0, levels=3),
    SampleCase("whole distribution", 9, 4099),
    SampleCase("hot", 9, 300, temperature=5.0),
    SampleCase("top_k", 9, 5000, top_k=20),
    SampleCase("top_k of one", 5, 5000, top_k=1),
    SampleCase("top_k of more than there are", 5, 100, top_k=100),
    SampleCase("top_k among equals", 5, 700, top_k=5, levels=4),
    SampleCase("top_p", 9, 5000, top_p=0.8),
    SampleCase("top_p of nothing", 5, 1000, top_p=0.0),
    SampleCase("min_p", 9, 5000, min_p=0.1),
    SampleCase("all filters", 9, 5000, min_p=0.01, top_k=50, top_p=0.9, temperature=1.3),
]
