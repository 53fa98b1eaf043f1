"""The one timer of all kernel benchmarks, and what is attainable on this machine."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable

import numpy as np

from quire_kernels.cpu.environment import prepare_process

prepare_process()

from quire_kernels.cpu.team import BoundTask, Program, available_cores  # noqa: E402 - after its environment


def best_seconds(run: Callable[[], None], *, budget_s: float = 0.5) -> float:
    """Fastest of as many runs as fit the budget, at least five; the first is not counted."""
    run()
    best, until, runs = float("inf"), time.perf_counter() + budget_s, 0
    while runs < 5 or time.perf_counter() < until:
        start = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - start)
        runs += 1
    return best


def program_seconds(steps: list[BoundTask]) -> float:
    """Seconds of one step when the steps run as one program; several steps with data of their own defeat the cache."""
    return best_seconds(Program(steps, available_cores()).run) / len(steps)


def copy_gb_per_s() -> float:
    """Bytes read plus written per second by a copy far larger than the caches."""
    source = np.ones(32 << 20, dtype=np.float32)
    target = np.empty_like(source)
    return 2 * source.nbytes / best_seconds(lambda: np.copyto(target, source)) / 1e9


def report(operation: str, case: str, seconds: float, *, num_bytes: int = 0, num_flops: int = 0) -> None:
    """Print one JSON line: microseconds, and what was reached of bytes and operations."""
    line: dict[str, object] = {"operation": operation, "case": case, "us": round(seconds * 1e6, 1)}
    if num_bytes:
        line["gb_per_s"] = round(num_bytes / seconds / 1e9, 2)
    if num_flops:
        line["gflop_per_s"] = round(num_flops / seconds / 1e9, 1)
    print(json.dumps(line | {"cores": available_cores(), "machine": platform.machine()}), flush=True)
