"""The whole suite on an accelerator as its clients see it: SSE streams through Envoy, gateway, scheduler and worker.

    python benchmarks/gpu/suite.py --model some/model.gguf --device cuda --output benchmarks/results/gpu-suite.json

Needs a model with a tokenizer (a folder or a .gguf file) and Envoy's wheel. Each load is a closed loop of streams with
random prompts of one length, end of sequence ignored, run once unmeasured with other prompts; figures are of all
repeats together. The last line of stdout is one JSON object; the exit status is 1 when a request failed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import uvloop

from quire_bench.load import Client, LoadResult, closed_loop
from quire_bench.models import only_model
from quire_bench.openai_client import ApiOptions
from quire_bench.report import console, emit, progress
from quire_bench.server_process import Server, cancel_on_sigterm, running
from quire_bench.stats import summarise
from quire_bench.watch import Watch, shares
from quire_bench.workloads import Workload, random_prompts

# Streams, tokens in, tokens out: the shapes of the engine benchmark's W1, W2 and W3.
LOADS = {"one": (1, 128, 256), "some": (32, 512, 256), "many": (256, 1024, 256)}
KEPT = (
    "num_ok",
    "num_errors",
    "errors",
    "duration_s",
    "output_tokens_per_s",
    "tokens_per_chunk",
    "ttft_ms",
    "tpot_ms",
    "itl_ms",
)


async def drive(server: Server, workload: Workload) -> LoadResult:
    """One closed-loop run on new connections."""
    client = Client(server.url, ApiOptions(await only_model(server.url)), timeout_s=600.0)
    try:
        with progress(workload.name, len(workload.requests)) as on_record:
            return await closed_loop(client, workload.requests, workload.concurrency, on_record)
    finally:
        client.close()


async def measure_load(server: Server, name: str, repeats: int, scale: float) -> dict[str, Any]:
    """One load: what clients saw, and each service's share of the processors meanwhile."""
    streams, num_input, num_output = (max(1, round(size * scale)) for size in LOADS[name])
    await drive(
        server,
        random_prompts(f"{name}, warm-up", streams, num_input, num_output, seed=1, concurrency=streams),
    )
    workload = random_prompts(name, streams * repeats, num_input, num_output, seed=2, concurrency=streams)
    watch = Watch([server])
    result = await drive(server, workload)
    used = watch.stop()
    summary = summarise(result)
    figures = {key: summary[key] for key in KEPT if key in summary}
    sizes = {"streams": streams, "input": num_input, "output": num_output}
    console.print(name, sizes, figures)
    return sizes | figures | {"cpu_share": shares(used, result.duration_s)}


async def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Start the suite, run the loads, stop it."""
    cancel_on_sigterm()
    command = [str(Path(sys.executable).parent / "quire"), "up", "--model", args.model]
    command += ["--device", args.device]
    command += ["--port", str(args.port), *args.up_args]
    url = f"http://127.0.0.1:{args.port}/v1"
    with tempfile.TemporaryDirectory(prefix="quire-bench-") as folder:
        log = Path(folder) / "suite.log"
        async with running("the suite", command, url, log, ready_timeout_s=600.0) as server:
            ready_s = time.perf_counter() - server.started
            loads = {name: await measure_load(server, name, args.repeats, args.scale) for name in args.loads}
    return {
        "benchmark": "gpu_suite",
        "model": Path(args.model).name,
        "device": args.device,
        "num_cpus": os.cpu_count(),
        "ready_s": round(ready_s, 2),
        "loads": loads,
    }


def main() -> int:
    """Run, print, save."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True, help="a .gguf file or a folder with weights and tokenizer")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--port", type=int, default=21200)
    parser.add_argument("--loads", nargs="+", default=list(LOADS), choices=list(LOADS))
    parser.add_argument("--repeats", type=int, default=3, help="requests of each stream")
    parser.add_argument("--scale", type=float, default=1.0, help="of streams and lengths, for a first look")
    parser.add_argument("--output", type=Path)
    parser.add_argument("up_args", nargs="*", help="more arguments of `quire up`, after --")
    args = parser.parse_args()
    report = uvloop.run(measure(args))
    if args.output is not None:
        args.output.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    emit(report)
    return 1 if any(load["num_errors"] for load in report["loads"].values()) else 0


if __name__ == "__main__":
    raise SystemExit(main())
