"""fp8_rows: bytes moved a second by each of its three sources."""

from __future__ import annotations

from functools import partial

import torch
from gpu_timing import Report, graph_seconds

from quire_kernels.fp8_rows.op import add_rms_norm_fp8, quantize_rows, silu_mul_fp8


def main(report: Report, sweep: bool) -> None:
    """The rows of an 8B decoder."""
    for rows in (128, 256, 4096):
        x = torch.randn(rows, 4096, device="cuda", dtype=torch.bfloat16)
        wide = torch.randn(rows, 2 * 14336, device="cuda", dtype=torch.bfloat16)
        weight = torch.ones(4096, device="cuda", dtype=torch.bfloat16)
        out, inner = (torch.empty(rows, n, device="cuda", dtype=torch.float8_e4m3fn) for n in (4096, 14336))
        scale = torch.empty(rows, device="cuda")
        kinds = {
            "rows": (partial(quantize_rows, x, out, scale, pdl=True), 3 * out.numel()),
            "norm": (
                partial(add_rms_norm_fp8, x, x.clone(), weight, 1e-5, out, scale, pdl=True),
                7 * out.numel(),
            ),
            "gate": (partial(silu_mul_fp8, wide, inner, scale, pdl=True), 5 * inner.numel()),
        }
        for name, (run, num_bytes) in kinds.items():
            report.add("fp8_rows", f"{name} {rows}", graph_seconds([run] * 10), num_bytes=num_bytes)
