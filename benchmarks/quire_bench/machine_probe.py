"""How evenly this machine runs: a small fixed piece of work, again and again, on every processor, beside a measurement.

A virtual machine's processors may run at a fraction of their speed for a while, without a trace in the system's own
figures. No service can be faster then; a tail of latencies that came in such moments says nothing about the suite. The
probe runs before everything else (round robin in real time, where that is allowed), so it waits for nobody: its pieces
take longer only when the processor is slower. It costs each processor two to three percent and knows no server.

    python -m quire_bench.machine_probe SECONDS PROCESSOR      prints "wall clock, milliseconds" lines
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import time
from dataclasses import dataclass
from typing import Any

from quire_bench.stats import distribution

PERIOD_S = 0.004
PIECE = range(1500)
#: A piece that takes so many times the median was run by a slowed processor.
SLOW_RATIO = 2.5
#: Interrupts and the probe's own caches cost this much now and then.
SLACK_MS = 0.1


@dataclass(frozen=True, slots=True)
class Slowdowns:
    """When the machine was slow: stretches of wall clock in seconds, in order, that touch no other."""

    stretches: list[tuple[float, float]]
    pieces_ms: list[float]
    duration_s: float

    def overlaps(self, start: float, end: float) -> bool:
        """Whether the machine was slow at any time from `start` to `end`, wall clock in seconds."""
        return any(begin <= end and start <= until for begin, until in self.stretches)

    def summary(self) -> dict[str, Any]:
        """The pieces' times, and the share of the run in which the machine was slow."""
        slow_s = sum(end - begin for begin, end in self.stretches)
        return {
            "piece_ms": distribution(self.pieces_ms),
            "slow_share": round(slow_s / self.duration_s, 4) if self.duration_s else None,
            "num_slow_stretches": len(self.stretches),
        }


class MachineProbe:
    """Probes every processor from `start` to `stop`."""

    def __init__(self) -> None:
        self._processes: list[asyncio.subprocess.Process] = []
        self._started = 0.0

    async def start(self, max_duration_s: float = 600.0) -> None:
        """Begin; ends by itself after `max_duration_s`."""
        self._started = time.time()
        for processor in sorted(os.sched_getaffinity(0)):
            command = (sys.executable, "-m", "quire_bench.machine_probe", str(max_duration_s), str(processor))
            self._processes.append(
                await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
            )

    async def stop(self) -> Slowdowns:
        """What was found."""
        pieces: list[tuple[float, float]] = []
        duration_s = time.time() - self._started
        for process in self._processes:
            process.terminate()
            output, _ = await process.communicate()
            for line in output.decode().splitlines():
                at, took_ms = line.split()
                pieces.append((float(at), float(took_ms)))
        return slowdowns(sorted(pieces), duration_s)


def slowdowns(pieces: list[tuple[float, float]], duration_s: float) -> Slowdowns:
    """From (wall clock at the end in seconds, milliseconds taken), ordered by time. No pieces: no slowdowns."""
    times = [took_ms for _, took_ms in pieces]
    limit = statistics.median(times) * SLOW_RATIO + SLACK_MS if times else 0.0
    stretches: list[tuple[float, float]] = []
    for at, took_ms in pieces:
        if took_ms <= limit:
            continue
        begin, end = at - took_ms / 1e3 - PERIOD_S, at + PERIOD_S
        if stretches and begin <= stretches[-1][1]:
            stretches[-1] = (min(begin, stretches[-1][0]), max(end, stretches[-1][1]))
        else:
            stretches.append((begin, end))
    return Slowdowns(stretches, times, duration_s)


def main() -> int:
    """The probe's process."""
    duration_s, processor = float(sys.argv[1]), int(sys.argv[2])
    os.sched_setaffinity(0, {processor})
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(50))
    except PermissionError:
        # Without the right its pieces also count the waits for a processor, which is worse but not wrong.
        print("machine probe: no real-time priority", file=sys.stderr)
    end = time.perf_counter() + duration_s
    while (began := time.perf_counter()) < end:
        total = 0
        for number in PIECE:
            total += number * number
        took_ms = (time.perf_counter() - began) * 1e3
        print(f"{time.time():.4f} {took_ms:.3f}", flush=True)
        time.sleep(PERIOD_S)
    return 0


if __name__ == "__main__":
    sys.exit(main())
