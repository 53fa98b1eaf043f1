"""Sampled tokens on their way to the host: copied without waiting, and waited for by another thread than launches.

Several pinned buffers take turns; more steps than buffers are never in flight.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

# The scheduler keeps at most eight steps in flight.
NUM_BUFFERS: Final = 16


@dataclass(frozen=True, slots=True)
class PendingTokens:
    """Tokens that will be there once the device has come so far."""

    tokens: NDArray[np.int32]
    event: torch.cuda.Event | None

    def wait(self) -> NDArray[np.int32]:
        """The tokens; blocks without holding the interpreter's lock."""
        if self.event is not None:
            self.event.synchronize()
        return self.tokens


class ResultBuffers:
    """Starts copies of `chosen`."""

    def __init__(self, max_rows: int, device: torch.device) -> None:
        is_cuda = device.type == "cuda"
        self._pinned = [
            torch.zeros(max_rows, dtype=torch.int32, pin_memory=is_cuda) for _ in range(NUM_BUFFERS)
        ]
        self._events = [torch.cuda.Event() if is_cuda else None for _ in range(NUM_BUFFERS)]
        self._turn = 0

    def start(self, chosen: torch.Tensor) -> PendingTokens:
        """Copy to the host, on the current stream."""
        self._turn = (self._turn + 1) % NUM_BUFFERS
        target, event = self._pinned[self._turn][: len(chosen)], self._events[self._turn]
        target.copy_(chosen, non_blocking=True)
        if event is not None:
            event.record()
        return PendingTokens(target.numpy(), event)
