"""The one timer of all GPU benchmarks, the machine's ceilings, and the report of what was reached of them."""

from __future__ import annotations

import itertools
import json
import os
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import torch

Launch = Callable[[], object]
# "2/8": only compile, every eighth launch from the second on; several such processes fill Triton's cache in parallel.
_SHARD = [int(part) for part in os.environ.get("QUIRE_BENCH_SHARD", "0/0").split("/")]
_calls = itertools.count()


def graph_seconds(launches: Sequence[Launch], *, replays: int = 15) -> float:
    """Median seconds of one launch: all of them, on data of their own, captured in a CUDA graph and replayed.

    Each is run once before the capture, so that nothing is compiled in it.
    """
    if _SHARD[1]:
        if next(_calls) % _SHARD[1] == _SHARD[0]:
            launches[0]()
        return 1.0
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for launch in launches:
            launch()
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for launch in launches:
                launch()
        graph.replay()
        times = []
        for _ in range(replays):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record(stream)
            graph.replay()
            end.record(stream)
            end.synchronize()
            times.append(start.elapsed_time(end) / 1e3)
    return statistics.median(times) / len(launches)


class Report:
    """Collects lines; each says what was reached of the ceiling that bounds it."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []
        self.copy_bytes_per_s = self._copy()
        self.flops_per_s = self._matmul()
        self.machine = {
            "gpu": torch.cuda.get_device_name(), "torch": torch.__version__,
            "copy_gb_per_s": round(self.copy_bytes_per_s / 1e9), "bf16_tflop_per_s": round(self.flops_per_s / 1e12),
        }  # fmt: skip
        print(json.dumps(self.machine), flush=True)

    def add(
        self, operation: str, case: str, seconds: float, *, num_bytes: float = 0, num_flops: float = 0
    ) -> None:
        """One line: microseconds, rates, and the share of what the machine attains for the bound that is larger."""
        line: dict[str, Any] = {"operation": operation, "case": case, "us": round(seconds * 1e6, 2)}
        floor = max(num_bytes / self.copy_bytes_per_s, num_flops / self.flops_per_s)
        if num_bytes:
            line["gb_per_s"] = round(num_bytes / seconds / 1e9)
        if num_flops:
            line["tflop_per_s"] = round(num_flops / seconds / 1e12, 1)
        line["bound"] = "flops" if num_flops / self.flops_per_s == floor and num_flops else "bytes"
        line["of_attainable"] = round(floor / seconds, 3)
        self.lines.append(line)
        if not _SHARD[1]:
            print(json.dumps(line), flush=True)

    def _copy(self) -> float:
        source = torch.randn(1 << 29, device="cuda")
        target = torch.empty_like(source)
        # A kernel and not the copy engine, which is slower.
        return 2 * source.nbytes / graph_seconds([lambda: torch.neg(source, out=target)] * 3)

    def _matmul(self) -> float:
        a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        out = torch.empty_like(a)
        return 2 * 8192**3 / graph_seconds([lambda: torch.mm(a, b, out=out)] * 8)
