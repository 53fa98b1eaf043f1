"""The engine on an accelerator: scheduler and worker as two processes over gRPC, workloads W1 to W6, and the same
plans with no gRPC between. Prints a table to stderr and one JSON object on the last line of stdout.

    python benchmarks/gpu/engine.py --model llama-8b --output benchmarks/results/gpu-engine.json
    python benchmarks/gpu/engine.py --model some/folder --load-format auto --workloads W1 W2 --mode both

Weights are random unless --load-format auto is given. Each workload runs once unmeasured with other token ids, then
--repeats times; figures are medians with the smallest and the largest beside them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from measure import figures, summary
from processes import EngineOptions, open_client, running_pair
from workloads import WORKLOADS

from quire_servicekit import loop

MODELS = Path(__file__).parent / "models"


async def run_all(engine: Any, names: list[str], repeats: int) -> dict[str, Any]:
    """Every workload on an engine that has `run` and `vocab_size`."""
    results = {}
    for name in names:
        make = WORKLOADS[name]
        await engine.run(make(engine.vocab_size, 100))
        runs = []
        for repeat in range(repeats):
            workload = make(engine.vocab_size, repeat)
            runs.append(figures(name, workload, await engine.run(workload)))
        results[name] = summary(runs)
        show(name, results[name])
    return results


async def over_grpc(options: EngineOptions, names: list[str], repeats: int) -> dict[str, Any]:
    """Two processes."""
    with running_pair(options) as pair:
        try:
            channel, client = await open_client(pair)
            started = time.perf_counter()
            await client.run(WORKLOADS["W1"](client.vocab_size, 200))
            first_s = pair.ready_s + time.perf_counter() - started
            workloads = await run_all(client, names, repeats)
            await channel.close()
        except BaseException:
            print(pair.worker_log.read_text(encoding="utf-8")[-6000:], file=sys.stderr)
            raise
    events = pair.worker_events()
    return {
        "workloads": workloads,
        "start_up": {
            "ready_s": round(pair.ready_s, 2),
            "first_request_done_s": round(first_s, 2),
            "phases": [
                event
                for event in events
                if event.get("event") in ("weights loaded", "pool allocated", "imported")
            ],
        },
        "warnings": [event for event in events if event.get("level") in ("warning", "error")],
    }


async def in_process(options: EngineOptions, names: list[str], repeats: int) -> dict[str, Any]:
    """One process."""
    from in_process import InProcessEngine

    engine = await asyncio.to_thread(InProcessEngine, options)
    try:
        return {
            "workloads": await run_all(engine, names, repeats),
            "compiled": engine.executor.compiled.names,
        }
    finally:
        engine.close()


def show(name: str, result: dict[str, Any]) -> None:
    """One workload's figures, a line each."""
    for figure, values in result.items():
        spread = f"{values['min']:g} to {values['max']:g}"
        print(f"{name:10s} {figure:28s} {values['median']:12g}   ({spread})", file=sys.stderr, flush=True)


def machine() -> dict[str, Any]:
    """What it ran on."""
    import torch

    facts: dict[str, Any] = {"python": platform.python_version(), "torch": torch.__version__}
    if torch.cuda.is_available():
        facts["gpu"] = torch.cuda.get_device_name(0)
    return facts


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--model", default="llama-8b", help="a folder of models/ or any folder with config.json"
    )
    parser.add_argument("--workloads", nargs="+", default=list(WORKLOADS), choices=list(WORKLOADS))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--mode", choices=("grpc", "in-process", "both"), default="grpc")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--attention", default="auto")
    parser.add_argument("--load-format", default="dummy", choices=("auto", "dummy"))
    parser.add_argument("--quantization", default="auto", choices=("auto", "none", "fp8"))
    parser.add_argument("--kv-cache-dtype", default="auto", choices=("auto", "fp8"))
    parser.add_argument("--max-num-seqs", type=int, default=256)
    parser.add_argument("--max-num-batched-tokens", type=int, default=8192)
    parser.add_argument("--max-model-len", type=int, default=8192)
    parser.add_argument("--num-blocks", type=int, default=0)
    parser.add_argument("--steps-in-flight", type=int, default=2)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--log-dir", default=tempfile.gettempdir())
    arguments = parser.parse_args()
    folder = MODELS / arguments.model
    options = EngineOptions(
        model=str(folder if folder.exists() else arguments.model),
        device=arguments.device,
        dtype=arguments.dtype,
        attention=arguments.attention,
        load_format=arguments.load_format,
        quantization=arguments.quantization,
        kv_cache_dtype=arguments.kv_cache_dtype,
        max_num_seqs=arguments.max_num_seqs,
        max_num_batched_tokens=arguments.max_num_batched_tokens,
        max_model_len=arguments.max_model_len,
        num_blocks=arguments.num_blocks,
        max_steps_in_flight=arguments.steps_in_flight,
        log_dir=arguments.log_dir,
    )
    result: dict[str, Any] = {
        "benchmark": "gpu_engine",
        "model": arguments.model,
        "dtype": arguments.dtype,
        "quantization": arguments.quantization,
        "kv_cache_dtype": arguments.kv_cache_dtype,
        "steps_in_flight": arguments.steps_in_flight,
        "machine": machine(),
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    for mode, run in (("grpc", over_grpc), ("in-process", in_process)):
        if arguments.mode in (mode, "both"):
            print(f"--- {mode}", file=sys.stderr, flush=True)
            result[mode] = loop.run(run(options, arguments.workloads, arguments.repeats))
    if arguments.output is not None:
        arguments.output.parent.mkdir(parents=True, exist_ok=True)
        arguments.output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
