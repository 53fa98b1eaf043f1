"""What slots ask to be done to their logits, as tensors. Imports no compiler."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch

# Bits of a slot's flags.
BIAS: Final = 1
PENALTIES: Final = 2
ALLOWED: Final = 4
FORBIDDEN: Final = 8
# Token ids that one program takes.
CHUNK: Final = 4096


@dataclass(slots=True)
class BySlot:
    """What the slots ask for; see the kernel's legend. int32, but penalties and bias_values float32.

    flags, num_prompt, min_until, bias_lengths, ending_lengths, bad_lengths, bad_longest [M]; penalties [M, 3]; counts
    [M, V] and counted [M, chunks], both zero for a new sequence; bias_ids, bias_values, ending, bad_tokens, bad_starts
    [M, room]; allowed [M, words].
    """

    flags: torch.Tensor
    penalties: torch.Tensor
    num_prompt: torch.Tensor
    counts: torch.Tensor
    counted: torch.Tensor
    bias_ids: torch.Tensor
    bias_values: torch.Tensor
    bias_lengths: torch.Tensor
    allowed: torch.Tensor
    ending: torch.Tensor
    ending_lengths: torch.Tensor
    min_until: torch.Tensor
    bad_tokens: torch.Tensor
    bad_starts: torch.Tensor
    bad_lengths: torch.Tensor
    bad_longest: torch.Tensor


def make_by_slot(num_slots: int, vocab_size: int, device: torch.device | str) -> BySlot:
    """Slots that ask for nothing. Lists have no room yet, nor have counts and allowed: whoever needs them puts larger
    tensors in their place."""

    def zeros(*shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
        return torch.zeros(shape, dtype=dtype, device=device)

    return BySlot(
        flags=zeros(num_slots), penalties=zeros(num_slots, 3, dtype=torch.float32), num_prompt=zeros(num_slots),
        counts=zeros(1, 1), counted=zeros(num_slots, -(-vocab_size // CHUNK)), bias_ids=zeros(num_slots, 1),
        bias_values=zeros(num_slots, 1, dtype=torch.float32), bias_lengths=zeros(num_slots), allowed=zeros(1, 1),
        ending=zeros(num_slots, 1), ending_lengths=zeros(num_slots), min_until=zeros(num_slots),
        bad_tokens=zeros(num_slots, 1), bad_starts=zeros(num_slots, 2), bad_lengths=zeros(num_slots),
        bad_longest=zeros(num_slots),
    )  # fmt: skip
