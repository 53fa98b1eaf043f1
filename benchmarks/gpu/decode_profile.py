"""Where a decode step's time goes on a GPU: a table per kernel role with bytes, time and share of the copy bandwidth.

    python benchmarks/gpu/decode_profile.py --model llama-8b --batch 1 32 --context 256 600 --output profile.json

Replays captured steps under torch's profiler, sorts the kernels of each step into roles by their order (projections of
a layer follow each other as the decoder launches them), sums over layers. The last line of stdout is one JSON object.
"""

from __future__ import annotations

import argparse
import itertools
import json
import queue
import re
import statistics
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from engine import MODELS

from quire_worker.cuda.executor import DeviceExecutor, DeviceExecutorSettings
from quire_worker.executor import ModelSource, PoolRequest
from quire_worker.models.spec import DecoderSpec
from quire_worker.step import NewSequence, SamplingParams, StepPlan

NUM_STEPS = 12
# Kernels that finish what the one before them began.
_REDUCTION = re.compile(r"splitKreduce|reduce_kernel")
_OTHER_ROLES = (
    ("_prepare", "step inputs"), ("_rows", "embedding"), ("_decode", "attention"), ("_prefix", "attention"),
    ("_add_rms_norm", "norms"), ("_silu", "activation"), ("_draw", "sampling"), ("_threshold", "sampling"),
    ("_rope", "rotary"), ("emcpy", "copies"), ("emset", "copies"),
)  # fmt: skip
_PROJECTIONS = ("qkv", "o_proj", "gate_up", "down")


class Steps:
    """Runs plans on an executor and waits for them."""

    def __init__(self, executor: DeviceExecutor) -> None:
        self._executor = executor
        self._id = 0

    def run(self, plans: list[dict[str, Any]]) -> None:
        """Submit all, then wait for all."""
        results: queue.Queue[Any] = queue.Queue()
        for columns in plans:
            self._id += 1
            self._executor.submit_plan(StepPlan(self._id, **columns), results.put)
        for _ in plans:
            if isinstance(result := results.get(timeout=300), Exception):
                raise result


def fill(steps: Steps, batch: int, context: int) -> list[int]:
    """Prefill `batch` sequences of `context` tokens; their slots."""
    blocks = -(-(context + 64) // 16)
    for slot in range(batch):
        ids = list(range(1 + slot * blocks, 1 + (slot + 1) * blocks))
        tokens = [(slot * 7919 + 31 * i) % 1000 + 1000 for i in range(context)]
        sequence = NewSequence(slot, tokens, context, 0, ids, SamplingParams(temperature=0.0))
        steps.run([{"slots": [slot], "num_new_tokens": [context], "new_sequences": [sequence]}])
    return list(range(batch))


def profiled(steps: Steps, slots: list[int]) -> list[list[Any]]:
    """Kernel events of each step, in order."""
    step = {"slots": slots, "num_new_tokens": [1] * len(slots)}
    steps.run([step] * 8)
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        steps.run([step] * NUM_STEPS)
        torch.cuda.synchronize()
    events = [e for e in profiler.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    events.sort(key=lambda event: event.time_range.start)
    by_step: list[list[Any]] = []
    for event in events:
        if "_prepare" in event.name or not by_step:
            by_step.append([])
        by_step[-1].append(event)
    return by_step[2:-1]


def roles_of(events: list[Any]) -> dict[str, tuple[float, int]]:
    """Microseconds and launches by role, of one step."""
    totals: dict[str, list[float]] = defaultdict(lambda: [0.0, 0])
    num_linear = sum(1 for e in events if _is_linear(e.name))
    seen = 0
    role = "other"
    for event in events:
        other = next((role for part, role in _OTHER_ROLES if part in event.name), None)
        if other is not None:
            role = other
        elif _REDUCTION.search(event.name):
            role = f"{role.removesuffix(' reduction')} reduction"
        elif _is_linear(event.name):
            role = "lm_head" if seen == num_linear - 1 else _PROJECTIONS[seen % 4]
            seen += 1
        else:
            role = "other"
        totals[role][0] += event.time_range.elapsed_us()
        totals[role][1] += 1
    return {role: (values[0], int(values[1])) for role, values in totals.items()}


def _is_linear(name: str) -> bool:
    if any(part in name for part, _ in _OTHER_ROLES) or _REDUCTION.search(name):
        return False
    return any(part in name for part in ("gemv", "gemm", "nvjet", "cutlass", "linear", "_skinny", "cublas"))


def role_bytes(spec: DecoderSpec, batch: int, context: int, element: int) -> dict[str, int]:
    """Bytes that each role must read: weights once, keys and values of every sequence once."""
    layers, hidden, heads = spec.num_layers, spec.hidden_size, spec.num_heads * spec.head_dim
    return {
        "qkv": layers * spec.qkv_size * hidden * element,
        "o_proj": layers * hidden * heads * element,
        "gate_up": layers * 2 * spec.intermediate_size * hidden * element,
        "down": layers * spec.intermediate_size * hidden * element,
        "lm_head": spec.vocab_size * hidden * element,
        "attention": batch * context * spec.kv_bytes_per_token(element),
    }


def table(by_step: list[list[Any]], sizes: dict[str, int], bandwidth: float) -> dict[str, Any]:
    """Medians over the steps."""
    each = [roles_of(events) for events in by_step]
    names = sorted({name for roles in each for name in roles})
    spans = [events[-1].time_range.end - events[0].time_range.start for events in by_step]
    starts = [events[0].time_range.start for events in by_step]
    periods = [later - earlier for earlier, later in itertools.pairwise(starts)]
    rows = {}
    for name in names:
        micros = statistics.median(roles.get(name, (0.0, 0))[0] for roles in each)
        row: dict[str, Any] = {"us": round(micros, 1), "launches": each[0].get(name, (0.0, 0))[1]}
        if name in sizes:
            row["mbytes"] = round(sizes[name] / 1e6, 1)
            row["gb_per_s"] = round(sizes[name] / micros / 1e3, 1)
            row["share_of_attainable"] = round(sizes[name] / micros / 1e3 / bandwidth, 3)
        rows[name] = row
    busy = statistics.median(sum(micros for micros, _ in roles.values()) for roles in each)
    return {
        "step_us": round(statistics.median(periods), 1),
        "first_to_last_kernel_us": round(statistics.median(spans), 1),
        "kernels_us": round(busy, 1),
        "floor_us": round(sum(sizes.values()) / bandwidth / 1e3, 1),
        "roles": dict(sorted(rows.items(), key=lambda item: -item[1]["us"])),
        "names": sorted({event.name[:90] for event in by_step[0]}),
    }


def copy_bandwidth() -> float:
    """GB/s of a device copy, read and written bytes counted."""
    source = torch.empty(1 << 32, dtype=torch.uint8, device="cuda").random_()
    target = torch.empty_like(source)
    times = []
    for _ in range(8):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        target.copy_(source)
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return 2 * source.numel() / statistics.median(times) / 1e6


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="llama-8b")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 32, 256])
    parser.add_argument("--context", type=int, nargs="+", default=[256, 640, 1152])
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    bandwidth = copy_bandwidth()
    torch.cuda.empty_cache()
    folder = MODELS / arguments.model
    executor = DeviceExecutor(DeviceExecutorSettings(load_format="dummy"))
    executor.load(ModelSource(str(folder if folder.exists() else arguments.model)), lambda progress: None)
    executor.allocate(PoolRequest(max_num_seqs=256, max_tokens_per_step=8192, max_model_len=8192))
    steps = Steps(executor)
    result: dict[str, Any] = {
        "benchmark": "gpu_decode_profile", "model": arguments.model, "gpu": torch.cuda.get_device_name(0),
        "copy_gb_per_s": round(bandwidth, 1), "batches": {},
    }  # fmt: skip
    for batch, context in zip(arguments.batch, arguments.context, strict=True):
        slots = fill(steps, batch, context)
        sizes = role_bytes(executor.spec, batch, context + 16, 2)
        rows = table(profiled(steps, slots), sizes, bandwidth)
        steps.run([{"slots": [], "num_new_tokens": [], "released_slots": slots}])
        result["batches"][f"{batch} x {context}"] = rows
        print(batch, context, json.dumps(rows["roles"]), file=sys.stderr, flush=True)
    executor.close()
    if arguments.output is not None:
        arguments.output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
