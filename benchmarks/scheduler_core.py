"""Time of planning and applying one step in the scheduler's domain alone: no sockets, no worker. Prints one JSON line.

    python benchmarks/scheduler_core.py [--sequences 256] [--owners 1] [--steps 2000] [--block-size 16]

Sequences decode without ending (steady state), with staggered lengths so that every step has some that cross a block
border; two steps are in flight. Times are medians and 99th percentiles over steps, milliseconds.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import sys
from collections import deque
from time import perf_counter

from quire_scheduler.config import SchedulerConfig
from quire_scheduler.request import Request, SamplingParams
from quire_scheduler.scheduler import SchedulerCore
from quire_scheduler.step import StepPlan, StepResult


def make_core(num_sequences: int, num_owners: int, num_steps: int, block_size: int) -> SchedulerCore:
    """A scheduler with `num_sequences` accepted requests, none started."""
    longest = 64 + block_size + 2 * num_steps + 64
    config = SchedulerConfig(
        block_size=block_size,
        max_num_seqs=num_sequences,
        max_num_batched_tokens=max(2048, num_sequences),
        max_model_len=longest,
    )
    core = SchedulerCore(config)
    core.worker_ready(num_sequences * (longest // block_size + 2) + 1)
    random_ids = random.Random(0)
    for i in range(num_sequences):
        prompt = [random_ids.randrange(50_000) for _ in range(64 + i % block_size)]
        sampling = SamplingParams(ignore_eos=True, stop_token_ids=(1, 2))
        core.submit(Request(f"gateway-{i % num_owners}", i, prompt, sampling), 0.0)
    return core


def result_of(plan: StepPlan) -> StepResult:
    """Tokens for every row that samples; making it is not timed."""
    slots = list(plan.sampling_rows.slots)
    return StepResult(plan.step_id, slots, [100 + slot for slot in slots])


def measure(core: SchedulerCore, num_steps: int) -> tuple[list[float], list[float]]:
    """Seconds of plan and of apply for each step, once all sequences decode."""
    in_flight: deque[StepPlan] = deque()
    plan_s: list[float] = []
    apply_s: list[float] = []
    num_warm_up = num_steps // 10
    while len(plan_s) < num_steps + num_warm_up:
        started = perf_counter()
        plan = core.plan(0.0)
        planned = perf_counter()
        if plan is not None:
            in_flight.append(plan)
            if not plan.new_sequences:
                plan_s.append(planned - started)
            if len(in_flight) < core.config.max_steps_in_flight:
                continue
        result = result_of(in_flight.popleft())
        started = perf_counter()
        core.apply(result, 0.0)
        if plan_s:
            apply_s.append(perf_counter() - started)
    return plan_s[num_warm_up:], apply_s[num_warm_up:]


def percentile(values: list[float], share: float) -> float:
    """The value below which that share of the values lies, in milliseconds."""
    ordered = sorted(values)
    return round(1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))], 4)


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sequences", type=int, default=256)
    parser.add_argument("--owners", type=int, default=1, help="gateways that share the engine")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--block-size", type=int, default=16)
    arguments = parser.parse_args()
    core = make_core(arguments.sequences, arguments.owners, arguments.steps, arguments.block_size)
    gc.collect()
    gc.freeze()
    plan_s, apply_s = measure(core, arguments.steps)
    both_s = [plan + apply for plan, apply in zip(plan_s, apply_s, strict=False)]
    print(
        json.dumps(
            {
                "benchmark": "scheduler_core",
                "sequences": arguments.sequences,
                "owners": arguments.owners,
                "steps": len(both_s),
                "plan_ms_p50": percentile(plan_s, 0.5),
                "apply_ms_p50": percentile(apply_s, 0.5),
                "plan_apply_ms_p50": percentile(both_s, 0.5),
                "plan_apply_ms_p99": percentile(both_s, 0.99),
                "python": sys.version.split()[0],
            }
        )
    )


if __name__ == "__main__":
    main()
