"""rows: bytes per second."""

from __future__ import annotations

from functools import partial

import torch
from gpu_timing import Report, graph_seconds

from quire_kernels.rows.op import gather_rows


def main(report: Report, sweep: bool) -> None:
    """Embeddings of a decode batch and of a prefill of the 8B shape."""
    del sweep
    table = torch.randn(128256, 4096, device="cuda", dtype=torch.bfloat16)
    for count in (1, 32, 4096):
        ids = torch.randint(len(table), (8, count), device="cuda", dtype=torch.int32)
        out = torch.empty(count, 4096, device="cuda", dtype=torch.bfloat16)
        launches = [partial(gather_rows, table, row, out, pdl=True) for row in ids]
        report.add("rows", f"{count} x 4096", graph_seconds(launches), num_bytes=2 * out.nbytes)
