"""step_inputs: microseconds; its bytes are nothing."""

from __future__ import annotations

from functools import partial

from gpu_timing import Report, graph_seconds

from quire_kernels.step_inputs.cases import StepCase
from quire_kernels.step_inputs.op import prepare_step


def main(report: Report, sweep: bool) -> None:
    """A decode bucket, and a chunk of a prompt."""
    del sweep
    for case in (
        StepCase("8 decodes", tuple((slot, 100, 1, 0) for slot in range(8))),
        StepCase("a chunk of 256", ((0, 512, 256, 16),)),
    ):
        packed, tables, inputs = case.build("cuda")
        tables.num_computed.zero_()
        options = {
            "num_rows": case.num_rows,
            "max_query_len": case.max_query_len,
            "block_size": 16,
            "pdl": True,
        }
        # One launch a replay: every launch advances the slots.
        seconds = graph_seconds([partial(prepare_step, packed, tables, inputs, **options)], replays=5)
        report.add("step_inputs", case.name, seconds)
