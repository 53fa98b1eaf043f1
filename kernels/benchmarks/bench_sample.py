"""sample: bytes of the logits per second."""

from __future__ import annotations

from functools import partial

import torch
from gpu_timing import Report, graph_seconds

from quire_kernels.sample.cases import SampleCase
from quire_kernels.sample.op import SampleWorkspace, sample_tokens


def main(report: Report, sweep: bool) -> None:
    """Greedy, unfiltered and filtered rows over the 8B vocabulary."""
    del sweep
    for rows in (1, 32, 256):
        for name, filters in (
            ("greedy", {"temperature": 0.0}), ("drawn", {}), ("top_p", {"top_p": 0.9}),
            ("top_k, top_p, min_p", {"top_k": 50, "top_p": 0.9, "min_p": 0.02}),
        ):  # fmt: skip
            case = SampleCase(name, rows, 128256, **filters)
            logits = torch.randn(rows, 128256, device="cuda") * 3
            slots = torch.arange(rows, device="cuda", dtype=torch.int32)
            tables = case.tables(rows, "cuda")
            # The count that a launch advances stands for both, so that rows sample at every replay.
            tables = type(tables)(
                torch.zeros(rows, 4096, device="cuda", dtype=torch.int32), tables.num_tokens, tables.num_tokens,
                tables.block_tables,
            )  # fmt: skip
            out = torch.empty_like(slots)
            workspace = SampleWorkspace("cuda", rows, 128256)
            launch = partial(
                sample_tokens, logits, slots, case.parameters(rows, "cuda"), tables, out, workspace,
                filtered=bool(filters) and name != "greedy", pdl=True,
            )  # fmt: skip
            report.add(
                "sample", f"{name} {rows} x 128256", graph_seconds([launch] * 4), num_bytes=logits.nbytes
            )
