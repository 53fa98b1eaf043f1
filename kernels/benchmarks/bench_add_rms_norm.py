"""add_rms_norm: bytes per second."""

from __future__ import annotations

from functools import partial

import torch
from gpu_timing import Report, graph_seconds

from quire_kernels.add_rms_norm.cases import AddNormCase
from quire_kernels.add_rms_norm.op import add_rms_norm


def main(report: Report, sweep: bool) -> None:
    """A decode batch and a prefill of the 8B shape."""
    del sweep
    for rows in (1, 32, 256, 4096):
        launches = []
        for _ in range(max(2, min(32, 4096 // rows))):
            inputs = AddNormCase(rows, 4096).inputs(torch.bfloat16, "cuda")
            launches.append(
                partial(add_rms_norm, **inputs, out=torch.empty_like(inputs["residual"]), pdl=True)
            )
        report.add("add_rms_norm", f"{rows} x 4096", graph_seconds(launches), num_bytes=4 * rows * 4096 * 2)
