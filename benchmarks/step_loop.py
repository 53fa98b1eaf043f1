"""Measure the step loop: scheduler and simulated worker as processes, over real gRPC, read through one Serve stream.

    python benchmarks/step_loop.py [--sequences 256] [--steps 3000] [--step-ms 0]

All sequences decode, with two steps in flight and, by default, no model time, so what is measured is the machinery
itself. The last line of stdout is one JSON object: `plan_apply_ms` (the scheduler's planning and applying, per step),
`steps_per_s` (the consumer included) and the split of the scheduler's time per step; transport is the processor time of
its process that no phase accounts for (gRPC, the event loop); `frame_ms` is from the worker's sampling to the client's
having the frame.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import resource
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quire.scheduler.v1 import scheduler_service_pb2_grpc, serve_pb2
from quire_servicekit import health, loop
from quire_servicekit.channel import connect

WARM_UP_STEPS = 300
PROMPT_TOKENS = 32
PHASE = re.compile(r'quire_scheduler_phase_seconds_total\{phase="(\w+)"\} (\S+)')
GOALS = {"plan_apply_ms": 1.0, "steps_per_s": 400.0}


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Where the processes are at one moment: wall clock, processor seconds, and the scheduler's phase times."""

    wall_s: float
    scheduler_cpu_s: float
    worker_cpu_s: float
    client_cpu_s: float
    phases_s: dict[str, float]


@dataclass(frozen=True, slots=True)
class Pair:
    """The two processes."""

    scheduler: subprocess.Popen[bytes]
    worker: subprocess.Popen[bytes]
    address: str
    metrics_url: str

    def snapshot(self) -> Snapshot:
        """Now."""
        with urllib.request.urlopen(self.metrics_url, timeout=10) as page:
            phases = {name: float(value) for name, value in PHASE.findall(page.read().decode())}
        own = resource.getrusage(resource.RUSAGE_SELF)
        return Snapshot(
            time.perf_counter(),
            _cpu_s(self.scheduler.pid),
            _cpu_s(self.worker.pid),
            own.ru_utime + own.ru_stime,
            phases,
        )


def _cpu_s(pid: int) -> float:
    """Processor time of all threads of a process, to the nanosecond where the kernel tells it (schedstat)."""
    total_ns = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        total_ns += int((task / "schedstat").read_text().split()[0])
    return total_ns * 1e-9


def free_port() -> int:
    """A port that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def running_pair(args: argparse.Namespace) -> Iterator[Pair]:
    """A simulated worker and a scheduler, stopped at the end."""
    scheduler, worker, metrics = (f"127.0.0.1:{free_port()}" for _ in range(3))
    num_tokens = PROMPT_TOKENS + WARM_UP_STEPS + args.steps + 600
    num_blocks = args.sequences * (num_tokens // 16 + 2) + 1
    python, quiet = [sys.executable, "-m"], ["--log-level", "warning"]
    sizes = ["--max-model-len", str(num_tokens + 64)]
    commands = [
        [*python, "quire_worker.simulated.main", "--listen", worker, "--num-blocks", str(num_blocks),
         "--step-base-ms", str(args.step_ms), *sizes, *quiet],
        [
            *python, "quire_scheduler.main", "--listen", scheduler, "--worker", worker, "--metrics-listen", metrics,
            "--max-num-seqs", str(args.sequences), "--max-steps-in-flight", str(args.in_flight), *quiet,
        ],
    ]  # fmt: skip
    environment = {name: value for name, value in os.environ.items() if not name.startswith("QUIRE_")}
    processes = [subprocess.Popen(command, env=environment) for command in commands]
    try:
        yield Pair(processes[1], processes[0], scheduler, f"http://{metrics}/metrics")
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait(timeout=30)


def submits(num_sequences: int, max_tokens: int) -> Iterator[serve_pb2.ServeRequest]:
    """One request per sequence, none like another."""
    for handle in range(num_sequences):
        submit = serve_pb2.Submit(
            handle=handle,
            request_id=f"bench-{handle}",
            prompt_token_ids=[1 + handle + position * 7 for position in range(PROMPT_TOKENS)],
        )
        submit.sampling.seed = handle
        submit.sampling.max_tokens = max_tokens
        submit.sampling.ignore_eos = True
        yield serve_pb2.ServeRequest(submit=submit)


async def read_steps(call: Any, num_steps: int, num_sequences: int) -> tuple[int, list[float]]:
    """Read frames until the engine is `num_steps` further, every column of them.

    Answers how many tokens came, and of each frame the milliseconds since its tokens were sampled.
    """
    num_tokens, first_step_id, last_step_id = 0, None, 0
    ages_ms: list[float] = []
    while first_step_id is None or last_step_id - first_step_id < num_steps:
        frame = (await call.read()).step_frame
        if len(frame.handles) < num_sequences and first_step_id is None:
            continue
        first_step_id = frame.step_id if first_step_id is None else first_step_id
        last_step_id = frame.step_id
        handles, counts, token_ids = list(frame.handles), list(frame.num_tokens), list(frame.token_ids)
        if len(handles) != len(counts):
            raise RuntimeError(f"step {frame.step_id}: {len(handles)} handles, {len(counts)} counts")
        num_tokens += len(token_ids)
        ages_ms.append(time.time_ns() * 1e-6 - frame.sampled_at_unix_us * 1e-3)
    return num_tokens, ages_ms


async def measure(pair: Pair, args: argparse.Namespace) -> tuple[Snapshot, Snapshot, int, list[float]]:
    """Submit everything, warm up, then count `args.steps` steps."""
    channel = connect(pair.address)
    try:
        async with asyncio.timeout(60):
            while not await health.check(channel, "quire.scheduler.v1.Scheduler"):
                await asyncio.sleep(0.05)
        call = scheduler_service_pb2_grpc.SchedulerStub(channel).Serve()
        await call.write(serve_pb2.ServeRequest(hello=serve_pb2.Hello(gateway_id="step-loop")))
        await call.read()
        for message in submits(args.sequences, WARM_UP_STEPS + args.steps + 500):
            await call.write(message)
        await read_steps(call, WARM_UP_STEPS, args.sequences)
        before = pair.snapshot()
        num_tokens, ages_ms = await read_steps(call, args.steps, args.sequences)
        after = pair.snapshot()
        call.cancel()
        return before, after, num_tokens, ages_ms
    finally:
        await channel.close()


def report(
    before: Snapshot, after: Snapshot, num_tokens: int, ages_ms: list[float], args: argparse.Namespace
) -> dict[str, Any]:
    """The figures."""

    def per_step_ms(seconds: float) -> float:
        return round(1e3 * seconds / args.steps, 4)

    wall_s = after.wall_s - before.wall_s
    phases = {name: after.phases_s[name] - before.phases_s[name] for name in after.phases_s}
    scheduler_cpu_s = after.scheduler_cpu_s - before.scheduler_cpu_s
    encoding_s = phases["plan_encode"] + phases["result_decode"] + phases["frame_encode"]
    return {
        "benchmark": "step_loop",
        "sequences": args.sequences,
        "steps": args.steps,
        "steps_in_flight": args.in_flight,
        "step_ms": args.step_ms,
        "plan_apply_ms": per_step_ms(phases["plan"] + phases["apply"]),
        "steps_per_s": round(args.steps / wall_s, 1),
        "tokens_per_s": round(num_tokens / wall_s),
        "split_ms": {
            "planning": per_step_ms(phases["plan"]),
            "encoding": per_step_ms(encoding_s),
            "transport": per_step_ms(scheduler_cpu_s - encoding_s - phases["plan"] - phases["apply"]),
            "apply": per_step_ms(phases["apply"]),
        },
        "encoding_ms": {
            name: per_step_ms(phases[name]) for name in ("plan_encode", "result_decode", "frame_encode")
        },
        "frame_ms": {
            "p50": round(statistics.median(ages_ms), 3),
            "p99": round(statistics.quantiles(ages_ms, n=100)[98], 3),
        },
        "cpu_ms_per_step": {
            "scheduler": per_step_ms(scheduler_cpu_s),
            "worker": per_step_ms(after.worker_cpu_s - before.worker_cpu_s),
            "client": per_step_ms(after.client_cpu_s - before.client_cpu_s),
        },
        "goals": GOALS,
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sequences", type=int, default=256, help="sequences that decode at once")
    parser.add_argument("--steps", type=int, default=3000, help="steps that are measured")
    parser.add_argument("--step-ms", type=float, default=0.0, help="simulated time of a step")
    parser.add_argument("--in-flight", type=int, default=2, help="steps in flight")
    args = parser.parse_args()
    with running_pair(args) as pair:
        before, after, num_tokens, ages_ms = loop.run(measure(pair, args))
    print(json.dumps(report(before, after, num_tokens, ages_ms, args)))


if __name__ == "__main__":
    main()
