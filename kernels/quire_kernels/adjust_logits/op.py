"""adjust_logits: rows of logits as their sequences want them before the draw."""

from __future__ import annotations

import torch

from quire_kernels.adjust_logits import kernel
from quire_kernels.adjust_logits.by_slot import CHUNK, BySlot
from quire_kernels.gpu.launch import check_device
from quire_kernels.step_inputs.op import Tables


def adjust_logits(
    logits: torch.Tensor,
    slots: torch.Tensor,
    by_slot: BySlot,
    tables: Tables,
    out: torch.Tensor,
    *,
    masks: torch.Tensor | None = None,
    mask_rows: torch.Tensor | None = None,
    forbids: bool = True,
) -> None:
    """out float32 [R, V] = logits [R, V] after, in this order: the slot's biases; its repetition penalty on tokens of
    prompt and output, frequency and presence penalties on those of the output; the row's mask; the slot's allowed ids;
    then ids that can't come now become -inf unless nothing would be left: the ending ones before min_until tokens, and
    the last ones of bad sequences whose other tokens the output ends with.

    slots int32 [R], -1: the row of out is left alone. masks int32 [n, ceil(V / 32)], bit t % 32 of word t // 32 for
    token t; mask_rows int32 [R]: each row's mask, -1: none. forbids False: no slot has ending ids or bad sequences.
    Tokens known since a slot was last here are counted by this call. No slot may be there twice.
    """
    if logits.dim() != 2 or logits.stride(1) != 1 or len(logits) != len(slots) or out.shape != logits.shape:
        raise ValueError(
            f"logits {list(logits.shape)}, slots {list(slots.shape)}, out {list(out.shape)} do not fit"
        )
    if out.dtype != torch.float32 or out.stride(1) != 1 or slots.dtype != torch.int32:
        raise ValueError("out must be float32 with contiguous rows, slots int32")
    if (masks is None) != (mask_rows is None):
        raise ValueError("masks and mask_rows are given together or not at all")
    if masks is not None and masks.shape[1:] != (-(-logits.shape[1] // 32),):
        raise ValueError(f"masks {list(masks.shape)} do not fit a vocabulary of {logits.shape[1]}")
    if by_slot.counted.shape[1] != -(-logits.shape[1] // CHUNK):
        raise ValueError(f"the slots are for another vocabulary than {logits.shape[1]}")
    check_device("adjust_logits", logits, slots, out, by_slot.flags, tables.token_ids, masks, mask_rows)
    if len(slots) == 0:
        return
    if masks is None or mask_rows is None:
        masks, mask_rows = by_slot.allowed, torch.full_like(slots, -1)
    room = by_slot.ending.shape[1] + by_slot.bad_starts.shape[1]
    hits = torch.empty(len(slots), room, dtype=torch.int32, device=out.device)
    saved = torch.empty(len(slots), room, dtype=torch.float32, device=out.device)
    kernel.launch(
        logits, slots, by_slot, tables, masks, mask_rows, out, (hits, saved), chunk=CHUNK, forbids=forbids
    )
