"""Shows that launching steps waits for nothing: the driver's calls of a step loop, counted under torch's profiler.

    python benchmarks/gpu/sync_check.py --model qwen3-0.6b --output sync.json

Prompts join decoding sequences, step after step, all submitted at once; torch raises an error for any operation of its
own that would wait. The last line of stdout is one JSON object; exit code 1 if a call waited for the device, memory was
taken from it, or a kernel was compiled.
"""

from __future__ import annotations

import argparse
import json
import queue
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from engine import MODELS

from quire_worker.cuda.executor import DeviceExecutor, DeviceExecutorSettings
from quire_worker.executor import ModelSource, PoolRequest
from quire_worker.step import NewSequence, SamplingParams, StepPlan

NUM_DECODES = 32
NUM_STEPS = 24
_WAITS = (
    "cudaStreamSynchronize",
    "cuStreamSynchronize",
    "cuCtxSynchronize",
    "cudaMemcpy",
    "cudaMalloc",
    "cudaFree",
)


def plans(first_id: int, count: int) -> list[StepPlan]:
    """32 decoding sequences; every other step a prompt joins them, and leaves with the next."""
    greedy = SamplingParams(temperature=0.0)
    result = []
    for index in range(count):
        new = []
        if index == 0:
            new = [
                NewSequence(slot, [5] * 20, 20, 19, list(range(1 + 8 * slot, 9 + 8 * slot)), greedy)
                for slot in range(NUM_DECODES)
            ]
        slots, counts = list(range(NUM_DECODES)), [1] * NUM_DECODES
        released = [NUM_DECODES] if index % 2 == 1 else []
        if index % 2 == 0:
            new.append(NewSequence(NUM_DECODES, [7] * 128, 128, 0, list(range(500, 509)), greedy))
            slots, counts = [*slots, NUM_DECODES], [*counts, 128]
        result.append(StepPlan(first_id + index, slots, counts, released_slots=released, new_sequences=new))
    return result


def run(executor: DeviceExecutor, steps: list[StepPlan]) -> None:
    """Submit all at once, then wait for all."""
    results: queue.Queue[Any] = queue.Queue()
    for plan in steps:
        executor.submit_plan(plan, results.put)
    for _ in steps:
        if isinstance(result := results.get(timeout=300), Exception):
            raise result


def driver_calls(executor: DeviceExecutor, steps: list[StepPlan]) -> Counter[str]:
    """How often each of the driver's functions was called meanwhile, by whichever thread."""
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profiler:
        run(executor, steps)
    return Counter(event.name for event in profiler.events() if event.name.startswith("cu"))


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="qwen3-0.6b")
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    folder = MODELS / arguments.model
    executor = DeviceExecutor(DeviceExecutorSettings(load_format="dummy"))
    executor.load(ModelSource(str(folder if folder.exists() else arguments.model)), lambda progress: None)
    executor.allocate(
        PoolRequest(max_num_seqs=64, max_tokens_per_step=2048, max_model_len=2048, num_blocks=1000)
    )
    run(executor, [*plans(1, 4), StepPlan(5, [], [], released_slots=list(range(NUM_DECODES)))])
    torch.cuda.set_sync_debug_mode("error")
    calls = driver_calls(executor, plans(100, NUM_STEPS))
    torch.cuda.set_sync_debug_mode("default")
    executor.close()
    # The collecting thread waits for events, one a step; the profiler waits for the device when it ends.
    waits = {name: count for name, count in calls.items() if name in _WAITS}
    result = {
        "benchmark": "gpu_sync_check", "model": arguments.model, "gpu": torch.cuda.get_device_name(0),
        "steps": NUM_STEPS, "calls": dict(calls.most_common()), "waits": waits, "compiled": executor.compiled.names,
    }  # fmt: skip
    if arguments.output is not None:
        arguments.output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result))
    sys.exit(1 if waits or executor.compiled.names else 0)


if __name__ == "__main__":
    main()
