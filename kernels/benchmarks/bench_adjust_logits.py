"""adjust_logits: bytes of the logits a second, for slots with everything and for slots with penalties."""

from __future__ import annotations

from functools import partial

import torch
from gpu_timing import Report, graph_seconds

from quire_kernels.adjust_logits.by_slot import PENALTIES
from quire_kernels.adjust_logits.cases import ALL, AdjustCase
from quire_kernels.adjust_logits.op import adjust_logits


def main(report: Report, sweep: bool) -> None:
    """The vocabulary of an 8B decoder; every second row asks for something."""
    for rows in (1, 32, 256):
        for name, flags in (("penalties", PENALTIES), ("everything", ALL)):
            inputs = AdjustCase(name, rows, 128256, flags=flags, masks=flags == ALL).inputs(
                torch.bfloat16, "cuda"
            )
            out = torch.empty(rows, 128256, device="cuda")
            run = partial(adjust_logits, **inputs, out=out)
            report.add("adjust_logits", f"{name} {rows}", graph_seconds([run] * 6), num_bytes=6 * out.numel())
