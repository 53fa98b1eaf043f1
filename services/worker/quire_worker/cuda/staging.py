"""The one copy that takes a plan to the device: int32 values packed into pinned memory, sent without waiting.

Several pinned buffers take turns, because a copy may still be under way when the next plan is packed.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

# Two steps are in flight, and a third may be packed while they are.
NUM_BUFFERS: Final = 4


class Staging:
    """`begin` a plan, fill `head` and `add` to it, then `send`. What is on the device is valid for that step.

    The head lies at the start of `device`, whose address never changes: captured graphs read it there.
    """

    def __init__(self, head_size: int, capacity: int, device: torch.device) -> None:
        """head_size, capacity: int32 values of the part that every plan has, and of a whole plan."""
        if capacity < head_size:
            raise ValueError(f"capacity {capacity} is below head_size {head_size}")
        is_cuda = device.type == "cuda"
        self.device = torch.zeros(capacity, dtype=torch.int32, device=device)
        self._pinned = [
            torch.zeros(capacity, dtype=torch.int32, pin_memory=is_cuda) for _ in range(NUM_BUFFERS)
        ]
        self._arrays: list[NDArray[np.int32]] = [buffer.numpy() for buffer in self._pinned]
        self._sent = [torch.cuda.Event() for _ in range(NUM_BUFFERS)] if is_cuda else []
        self._head_size = head_size
        self._turn = 0
        self._used = head_size

    @property
    def head(self) -> NDArray[np.int32]:
        """The head of the plan begun last, to be written by the caller; it keeps values of an older plan."""
        return self._arrays[self._turn][: self._head_size]

    def begin(self) -> None:
        """Start packing the next plan; waits only if the copy of four plans ago has not ended."""
        self._turn = (self._turn + 1) % NUM_BUFFERS
        self._used = self._head_size
        if self._sent:
            self._sent[self._turn].synchronize()

    def add(self, values: ArrayLike) -> torch.Tensor:
        """Pack a vector behind the head; where it will be on the device, on an 8-byte boundary.

        ValueError: the plan is larger than `capacity`.
        """
        array = np.asarray(values)
        start = self._used + self._used % 2
        end = start + array.size
        if end > self.device.numel():
            raise ValueError(f"a plan of more than {self.device.numel()} values can't be sent to the device")
        self._arrays[self._turn][start:end] = array.reshape(-1)
        self._used = end
        return self.device[start:end]

    def send(self) -> None:
        """Copy what was packed; on the current stream, not waited for."""
        pinned = self._pinned[self._turn]
        self.device[: self._used].copy_(pinned[: self._used], non_blocking=True)
        if self._sent:
            self._sent[self._turn].record()
