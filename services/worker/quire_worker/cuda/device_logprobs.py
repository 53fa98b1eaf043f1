"""Log-probabilities of sampled tokens, worked out on the device and copied without waiting.

Of the model's raw logits: the token's own and its rank, and those of the most probable tokens or of chosen ones.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from quire_worker.step import LogprobColumns, NewSequence


@dataclass(frozen=True, slots=True)
class PendingLogprobs:
    """Host copies that are there once the step's tokens are. rows: of the outcome; num_top: of each row.

    values float32 [n, 1 + most]: the token's own, then the others'; ids int64 [n, 1 + most]: the rank, then ids.
    """

    rows: list[int]
    num_top: list[int]
    values: torch.Tensor
    ids: torch.Tensor

    def columns(self) -> LogprobColumns:
        """As the outcome has them. Only once the step has ended."""
        values, ids = self.values.tolist(), self.ids.tolist()
        lists = list(zip(values, ids, self.num_top, strict=True))
        return LogprobColumns(
            rows=self.rows,
            logprobs=[row[0] for row in values],
            ranks=[row[0] for row in ids],
            num_top=self.num_top,
            top_token_ids=[token_id for _, row, count in lists for token_id in row[1 : 1 + count]],
            top_logprobs=[value for row, _, count in lists for value in row[1 : 1 + count]],
        )


class DeviceLogprobs:
    """Follows the sequences that asked. One thread."""

    def __init__(self, max_num_seqs: int, device: torch.device) -> None:
        self._device = device
        self._asking = np.zeros(max_num_seqs, dtype=bool)
        # By slot: how many of the most probable tokens, or which tokens.
        self._wanted: dict[int, tuple[int, tuple[int, ...]]] = {}

    def admit(self, sequence: NewSequence) -> None:
        """Take a new sequence."""
        params = sequence.sampling
        self._asking[sequence.slot] = params.wants_logprobs
        self._wanted[sequence.slot] = (params.num_logprobs or 0, tuple(params.logprob_token_ids))

    def start(
        self,
        logits: torch.Tensor,
        chosen: torch.Tensor,
        slots: NDArray[np.int64],
        rows: NDArray[np.int64],
    ) -> PendingLogprobs | None:
        """Start working out what the sampling slots asked for; None if nothing. rows: of logits and of chosen."""
        asking = np.flatnonzero(self._asking[slots])
        if not len(asking):
            return None
        wanted = [self._wanted[slot] for slot in slots[asking].tolist()]
        num_top = [len(ids) or min(count, logits.shape[1]) for count, ids in wanted]
        most = max(num_top)
        ids = np.full((len(wanted), most), -1, dtype=np.int64)
        for row, (_, chosen_ids) in enumerate(wanted):
            ids[row, : len(chosen_ids)] = chosen_ids
        # One copy: the rows, then the ids.
        packed = self._sent(np.concatenate([rows[asking], ids.reshape(-1)]))
        at, ids_there = packed[: len(asking)], packed[len(asking) :].view(len(asking), most)
        values, found = score_rows(logits[at], chosen[at], ids_there)
        return PendingLogprobs(asking.tolist(), num_top, self._back(values), self._back(found))

    def _sent(self, values: NDArray[np.int64]) -> torch.Tensor:
        tensor = torch.from_numpy(values)
        if self._device.type == "cuda":
            return tensor.pin_memory().to(self._device, non_blocking=True)
        return tensor

    def _back(self, values: torch.Tensor) -> torch.Tensor:
        if self._device.type != "cuda":
            return values
        target = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
        return target.copy_(values, non_blocking=True)


def score_rows(
    logits: torch.Tensor, tokens: torch.Tensor, ids: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """(values, ids) as PendingLogprobs has them, of rows of logits [n, V], their tokens [n] and the ids [n, most] that
    are wanted; -1: the most probable, descending, among equals the smaller id first."""
    wide = logits.float()
    normaliser = wide.logsumexp(-1, keepdim=True)
    own = wide.gather(1, tokens.long()[:, None])
    rank = (wide > own).sum(1, keepdim=True) + 1
    most = ids.shape[1]
    if most:
        ids = torch.where(ids < 0, _largest(wide, most), ids)
    values = torch.cat([own, wide.gather(1, ids)], dim=1) - normaliser
    return values, torch.cat([rank, ids], dim=1)


def _largest(wide: torch.Tensor, count: int) -> torch.Tensor:
    """Ids of the largest of each row. Equal logits are told apart by their ids, so that no order is left to chance."""
    bits = wide.view(torch.int32)
    ordered = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).long()
    last = wide.shape[1] - 1
    keys = (ordered << 32) | (last - torch.arange(wide.shape[1], device=wide.device))
    return last - (keys.topk(min(count, wide.shape[1]), dim=1).values & 0xFFFFFFFF)
