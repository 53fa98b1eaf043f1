"""adjust_logits in plain torch, row by row, with nothing counted ahead."""

from __future__ import annotations

from typing import Any

import torch

from quire_kernels.adjust_logits.by_slot import ALLOWED, BIAS, FORBIDDEN, PENALTIES, BySlot


def adjust_logits_reference(
    logits: torch.Tensor,
    slots: torch.Tensor,
    by_slot: BySlot,
    tables: Any,
    *,
    masks: torch.Tensor | None = None,
    mask_rows: torch.Tensor | None = None,
) -> torch.Tensor:
    """See op.adjust_logits; tables have token_ids and num_tokens. -> float32 [R, V], rows without a slot as before."""
    out = logits.float().clone()
    for index, slot in enumerate(slots.tolist()):
        if slot < 0:
            continue
        row, flag = out[index], int(by_slot.flags[slot])
        known, num_prompt = int(tables.num_tokens[slot]), int(by_slot.num_prompt[slot])
        tokens = tables.token_ids[slot, :known].long()
        if flag & BIAS:
            length = int(by_slot.bias_lengths[slot])
            row[by_slot.bias_ids[slot, :length].long()] += by_slot.bias_values[slot, :length]
        if flag & PENALTIES:
            _penalise(row, tokens, num_prompt, by_slot.penalties[slot].tolist())
        if masks is not None and mask_rows is not None and int(mask_rows[index]) >= 0:
            row[~_bits(masks[int(mask_rows[index])], len(row))] = float("-inf")
        if flag & ALLOWED:
            row[~_bits(by_slot.allowed[slot], len(row))] = float("-inf")
        if flag & FORBIDDEN:
            ids = _forbidden(by_slot, slot, tokens.tolist(), num_prompt)
            before = row[ids].clone()
            row[ids] = float("-inf")
            if not row.isfinite().any():
                row[ids] = before
    return out


def _penalise(row: torch.Tensor, tokens: torch.Tensor, num_prompt: int, penalties: list[float]) -> None:
    repetition, frequency, presence = penalties
    seen = tokens.unique()
    row[seen] = torch.where(row[seen] > 0, row[seen] / repetition, row[seen] * repetition)
    ids, times = tokens[num_prompt:].unique(return_counts=True)
    row[ids] -= frequency * times.float()
    row[ids] -= presence


def _bits(words: torch.Tensor, size: int) -> torch.Tensor:
    at = torch.arange(size, device=words.device)
    return (words[at // 32] >> (at % 32)) & 1 != 0


def _forbidden(by_slot: BySlot, slot: int, tokens: list[int], num_prompt: int) -> list[int]:
    ids: list[int] = []
    if len(tokens) < int(by_slot.min_until[slot]):
        ids += by_slot.ending[slot, : int(by_slot.ending_lengths[slot])].tolist()
    starts = by_slot.bad_starts[slot].tolist()
    output = tokens[num_prompt:]
    for j in range(int(by_slot.bad_lengths[slot])):
        *before, last = by_slot.bad_tokens[slot, starts[j] : starts[j + 1]].tolist()
        if len(before) <= len(output) and output[len(output) - len(before) :] == before:
            ids.append(last)
    return ids
