"""What sequences ask of their logits, kept on the device by slot: biases, penalties, masks and forbidden tokens.

Follows sequences as they come and go; never waits for the device. The order of what happens to a row is the sampler's
(sampling/sampler.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from quire_kernels.adjust_logits.by_slot import ALLOWED, BIAS, FORBIDDEN, PENALTIES, make_by_slot
from quire_worker.cuda.kernel_set import KernelSet
from quire_worker.cuda.state import DeviceTables
from quire_worker.masks import Words
from quire_worker.sampling.adjust import has_penalties
from quire_worker.sampling.sampler import check_ids
from quire_worker.step import NewSequence, SamplingParams


def has_filter(params: SamplingParams) -> bool:
    """Whether the device must look at min_p, top_k or top_p."""
    return params.temperature > 0.0 and (params.top_p < 1.0 or params.top_k > 0 or params.min_p > 0.0)


class DeviceSampling:
    """One thread. `admit` before the step that brings a sequence is launched, on the step's stream."""

    def __init__(self, vocab_size: int, max_num_seqs: int, device: torch.device) -> None:
        self._vocab_size = vocab_size
        self._device = device
        self._by_slot = make_by_slot(max_num_seqs, vocab_size, device)
        # The device's flags, as of the last admission of each slot.
        self._flags = np.zeros(max_num_seqs, dtype=np.int32)
        self._filtered = np.zeros(max_num_seqs, dtype=bool)

    def admit(self, sequence: NewSequence) -> None:
        """Take a new sequence. ValueError for ids outside the vocabulary."""
        check_ids(sequence, self._vocab_size)
        slot, params = sequence.slot, sequence.sampling
        self._filtered[slot] = has_filter(params)
        ending = [*params.stop_token_ids, *(() if params.ignore_eos else sequence.eos_token_ids)]
        ending = sorted(set(ending)) if params.min_tokens else []
        flags = BIAS if params.logit_bias else 0
        flags |= PENALTIES if has_penalties(params) else 0
        flags |= ALLOWED if params.allowed_token_ids else 0
        flags |= FORBIDDEN if ending or params.bad_token_sequences else 0
        if flags or self._flags[slot]:
            self._by_slot.flags[slot].fill_(flags)
        self._flags[slot] = flags
        if not flags:
            return
        self._by_slot.num_prompt[slot].fill_(sequence.num_prompt_tokens)
        if flags & BIAS:
            self._put("bias_ids", slot, np.fromiter(params.logit_bias, dtype=np.int32))
            self._put("bias_values", slot, np.fromiter(params.logit_bias.values(), dtype=np.float32))
            self._by_slot.bias_lengths[slot].fill_(len(params.logit_bias))
        if flags & PENALTIES:
            self._put_penalties(slot, params)
        if flags & ALLOWED:
            self._put_allowed(slot, params.allowed_token_ids)
        if flags & FORBIDDEN:
            self._put("ending", slot, np.array(ending, dtype=np.int32))
            self._by_slot.ending_lengths[slot].fill_(len(ending))
            self._by_slot.min_until[slot].fill_(sequence.num_prompt_tokens + params.min_tokens)
            self._put_bad(slot, params.bad_token_sequences)

    def is_filtered(self, slots: NDArray[np.int64]) -> bool:
        """Whether a slot has filters."""
        return bool(self._filtered[slots].any())

    def adjusts(self, slots: NDArray[np.int64]) -> bool:
        """Whether a slot asks for anything but filters and a step's mask."""
        return bool(self._flags[slots].any())

    def adjust(
        self,
        kernels: KernelSet,
        logits: torch.Tensor,
        slots: torch.Tensor,
        host_slots: NDArray[np.int64],
        tables: DeviceTables,
        masks: Mapping[int, Words],
    ) -> torch.Tensor:
        """The rows of logits as their slots want them, float32. slots, host_slots: of the rows, on the device and here.

        ValueError for a mask that permits no token.
        """
        out = torch.empty(logits.shape, dtype=torch.float32, device=logits.device)
        words, rows = self._masks(host_slots, masks) if masks else (None, None)
        forbids = bool((self._flags[host_slots] & FORBIDDEN).any())
        kernels.adjust_logits(
            logits, slots, self._by_slot, tables, out, masks=words, mask_rows=rows, forbids=forbids
        )
        return out

    def _masks(
        self, host_slots: NDArray[np.int64], masks: Mapping[int, Words]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        for slot, words in masks.items():
            if not words.any():
                raise ValueError(f"slot {slot}: its mask permits no token")
        index = {slot: row for row, slot in enumerate(masks)}
        rows = np.array([index.get(slot, -1) for slot in host_slots.tolist()], dtype=np.int32)
        return self._sent(np.stack([*masks.values()]).view(np.int32)), self._sent(rows)

    def _put_penalties(self, slot: int, params: SamplingParams) -> None:
        by_slot = self._by_slot
        values = [params.repetition_penalty, params.frequency_penalty, params.presence_penalty]
        by_slot.penalties[slot].copy_(self._sent(np.array(values, dtype=np.float32)))
        if by_slot.counts.numel() == 1:
            by_slot.counts = self._zeros(len(self._flags), self._vocab_size)
        by_slot.counts[slot].zero_()
        by_slot.counted[slot].zero_()

    def _put_allowed(self, slot: int, token_ids: Sequence[int]) -> None:
        by_slot, num_words = self._by_slot, -(-self._vocab_size // 32)
        if by_slot.allowed.numel() == 1:
            by_slot.allowed = self._zeros(len(self._flags), num_words)
        bits = np.zeros(num_words * 32, dtype=bool)
        bits[np.asarray(token_ids)] = True
        by_slot.allowed[slot].copy_(self._sent(np.packbits(bits, bitorder="little").view(np.int32)))

    def _put_bad(self, slot: int, sequences: Sequence[Sequence[int]]) -> None:
        lengths = np.array([len(sequence) for sequence in sequences], dtype=np.int32)
        tokens = np.array([token for sequence in sequences for token in sequence], dtype=np.int32)
        self._put("bad_tokens", slot, tokens)
        self._put("bad_starts", slot, np.concatenate([np.zeros(1, dtype=np.int32), np.cumsum(lengths)]))
        self._by_slot.bad_lengths[slot].fill_(len(sequences))
        self._by_slot.bad_longest[slot].fill_(int(lengths.max(initial=1)) - 1)

    def _put(self, name: str, slot: int, values: NDArray[Any]) -> None:
        """Write a slot's list; the table grows where it has no room."""
        table: torch.Tensor = getattr(self._by_slot, name)
        if len(values) > table.shape[1]:
            larger = table.new_zeros(len(table), 1 << (len(values) - 1).bit_length())
            larger[:, : table.shape[1]] = table
            setattr(self._by_slot, name, larger)
            table = larger
        if len(values):
            table[slot, : len(values)].copy_(self._sent(values))

    def _sent(self, values: NDArray[Any]) -> torch.Tensor:
        """On the device, in stream order, without waiting."""
        tensor = torch.from_numpy(np.ascontiguousarray(values))
        if self._device.type == "cuda":
            return tensor.pin_memory().to(self._device, non_blocking=True)
        return tensor

    def _zeros(self, *shape: int) -> torch.Tensor:
        return torch.zeros(shape, dtype=torch.int32, device=self._device)
