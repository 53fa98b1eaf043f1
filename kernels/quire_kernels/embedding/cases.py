"""Seeded inputs for tests and benchmarks of the embedding lookup."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from quire_kernels.cpu.layout import KINDS


@dataclass(frozen=True, slots=True)
class EmbeddingCase:
    """rows token ids out of a vocabulary."""

    kind: str
    rows: int
    vocab_size: int = 100
    size: int = 96

    def token_ids(self) -> torch.Tensor:
        """int32 [rows]; the first and the last token of the vocabulary are among them if there is room."""
        generator = torch.Generator().manual_seed(self.rows)
        ids = torch.randint(self.vocab_size, (self.rows,), generator=generator, dtype=torch.int32)
        ids[:1], ids[1:2] = 0, self.vocab_size - 1
        return ids


CASES = [EmbeddingCase(kind, rows) for kind in KINDS for rows in (0, 1, 37)]
