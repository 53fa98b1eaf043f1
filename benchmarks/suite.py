"""Measure the whole suite without a model: gateway, tokenizer, scheduler and Envoy before a simulated worker.

    python benchmarks/suite.py [--port 22010]

Two phases, each on a suite of its own. Throughput: steps of 0 ms, 64 streams, output tokens a second and each service's
share of the processors. Paced: steps of 10 ms, 32 streams, what the suite adds between the worker's sample and the
client. The last line of stdout is one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import uvloop

from quire_bench.load import Client, LoadResult, closed_loop
from quire_bench.locks import exclusive
from quire_bench.machine_probe import MachineProbe, Slowdowns
from quire_bench.models import only_model
from quire_bench.openai_client import ApiOptions
from quire_bench.report import console, emit, progress
from quire_bench.server_process import Server, ServerFailed, cancel_on_sigterm, running
from quire_bench.stats import arrivals, distribution, summarise, ttft_ms
from quire_bench.watch import Watch, shares
from quire_bench.workloads import Workload, random_prompts

GOALS = {
    "output_tokens_per_s": 10_000.0,
    "token_added_p50_ms": 2.0,
    "token_added_p99_ms": 8.0,
    "first_token_added_p50_ms": 8.0,
}
EXTENSION = "quire"
PACED_TOKENS = 128
COUNTS = ("num_ok", "num_errors", "errors", "duration_s", "tokens_per_chunk")
TIMING = {"stream_options": {"include_usage": True, "include_timing": True, "continuous_usage_stats": True}}


async def drive(server: Server, workload: Workload, extra: dict[str, Any] | None = None) -> LoadResult:
    """One closed-loop run on new connections."""
    options = ApiOptions(await only_model(server.url), extra=extra or {})
    client = Client(server.url, options, timeout_s=120.0, extension=EXTENSION if extra else None)
    try:
        with progress(workload.name, len(workload.requests)) as on_record:
            return await closed_loop(client, workload.requests, workload.concurrency, on_record)
    finally:
        client.close()


async def throughput(server: Server, args: argparse.Namespace) -> dict[str, Any]:
    """Output tokens a second with no model time, and who uses the processors meanwhile."""
    num_streams = args.streams
    await drive(server, random_prompts("warm-up", num_streams, 64, 32, seed=1, concurrency=num_streams))
    workload = random_prompts(
        "throughput", num_streams * args.rounds, 64, args.output, seed=2, concurrency=num_streams
    )
    watch = Watch([server])
    result = await drive(server, workload)
    used = watch.stop()
    summary = summarise(result)
    tokens = max(1, summary["num_output_tokens"])
    return {
        "num_streams": num_streams,
        "output_tokens_per_s": summary["output_tokens_per_s"],
        **{name: summary[name] for name in COUNTS},
        "ttft_ms": summary["ttft_ms"],
        "cpu_share": shares(used, result.duration_s),
        "cpu_us_per_token": {name: round(seconds / tokens * 1e6, 2) for name, seconds in used.items()},
    }


def staggered(num_streams: int, num_rounds: int) -> Workload:
    """Requests of PACED_TOKENS, after a first round of shorter ones that makes the streams end at different times.

    Clients that all end and begin together would measure that one moment, which no real load has.
    """
    workload = random_prompts(
        "paced", num_streams * (num_rounds + 1), 64, PACED_TOKENS, seed=4, concurrency=num_streams
    )
    shorter = [
        replace(request, max_tokens=PACED_TOKENS * (index + 1) // (num_streams + 1))
        for index, request in enumerate(workload.requests[:num_streams])
    ]
    return replace(workload, requests=shorter + workload.requests[num_streams:])


async def paced(server: Server, args: argparse.Namespace) -> dict[str, Any]:
    """What the suite adds to each token, and to the first one, at a load that leaves it time."""
    num_streams = args.paced_streams
    await drive(server, random_prompts("warm-up", num_streams, 64, 16, seed=3, concurrency=num_streams))
    workload = staggered(num_streams, args.paced_rounds)
    wall_offset_s = time.time() - time.perf_counter()
    probe = MachineProbe()
    await probe.start()
    watch = Watch([server])
    result = await drive(server, workload, TIMING)
    cpu_share = shares(watch.stop(), result.duration_s)
    slow = await probe.stop()
    # The first round starts all at once and only spreads the streams out: it is not judged.
    result.records = [record for record in result.records if record.max_tokens >= PACED_TOKENS]
    alone = await drive(server, random_prompts("one at a time", 40, 64, 2, seed=5, concurrency=1), TIMING)
    records = [record for record in result.records if record.ok]
    tokens = [arrivals(record, wall_offset_s, args.step_ms) for record in records]
    if not any(tokens):
        raise ServerFailed("no sample times came; failures: " + str(summarise(result)["errors"]))
    idle_ttfts = [t for record in alone.records if record.ok and (t := ttft_ms(record)) is not None]
    summary = summarise(result)
    return {
        "num_streams": num_streams,
        "step_ms": args.step_ms,
        **{name: summary[name] for name in COUNTS},
        "cpu_share": cpu_share,
        "num_tokens_timed": sum(len(values) for values in tokens),
        "token_added_ms": distribution(added for values in tokens for _, added in values),
        # The same without the tokens that were on their way while the machine itself ran slowly.
        "token_added_at_speed_ms": distribution(
            at_speed([pair for values in tokens for pair in values], slow)
        ),
        "machine": slow.summary(),
        # Sample to client of first tokens, under load; and on an idle suite everything but the one step of model time.
        "first_token_added_ms": distribution(values[0][1] for values in tokens if values),
        "idle_first_token_added_ms": distribution(value - args.step_ms for value in idle_ttfts),
        "ttft_ms": summary["ttft_ms"],
        "itl_ms": summary["itl_ms"],
    }


def at_speed(tokens: list[tuple[float, float]], slow: Slowdowns) -> list[float]:
    """The added milliseconds of those tokens that were sampled and arrived while no processor ran slowly."""
    return [added for arrived, added in tokens if not slow.overlaps(arrived - added / 1e3, arrived)]


async def with_suite(args: argparse.Namespace, step_ms: float, phase: Any) -> dict[str, Any]:
    """Start a suite with that step time, run one phase on it under the lock, stop it."""
    command = [str(Path(sys.executable).parent / "quire"), "up", "--simulate", "--step-ms", f"{step_ms:g}"]
    command += ["--port", str(args.port), *args.up_args]
    with tempfile.TemporaryDirectory(prefix="quire-bench-") as folder:
        log = Path(folder) / "suite.log"
        url = f"http://127.0.0.1:{args.port}/v1"
        async with running("the suite", command, url, log, ready_timeout_s=120.0) as server:
            async with exclusive(args.lock):
                found: dict[str, Any] = await phase(server, args)
            return found


def verdicts(report: dict[str, Any]) -> dict[str, bool]:
    """Which goals are met; a phase that was left out is not judged."""
    met = {}
    if fast := report.get("throughput"):
        met["output_tokens_per_s"] = fast["output_tokens_per_s"] >= GOALS["output_tokens_per_s"]
    if slow := report.get("paced"):
        met["token_added_p50_ms"] = slow["token_added_ms"]["p50"] <= GOALS["token_added_p50_ms"]
        met["token_added_p99_ms"] = slow["token_added_ms"]["p99"] <= GOALS["token_added_p99_ms"]
        first = max(slow["first_token_added_ms"]["p50"], slow["idle_first_token_added_ms"]["p50"])
        met["first_token_added_p50_ms"] = first <= GOALS["first_token_added_p50_ms"]
    return met


def show(report: dict[str, Any]) -> None:
    """The report for people."""
    if fast := report.get("throughput"):
        console.print(
            f"throughput: {fast['output_tokens_per_s']:.0f} output tok/s over {fast['num_streams']} streams, "
            f"{fast['tokens_per_chunk']} tokens a chunk, {fast['num_errors']} failed {fast['errors'] or ''}"
        )
        console.print(
            "  share of the processors:", fast["cpu_share"], "microseconds a token:", fast["cpu_us_per_token"]
        )
    if slow := report.get("paced"):
        console.print(
            f"paced: {slow['num_streams']} streams, {slow['step_ms']:g} ms steps, "
            f"{slow['num_errors']} failed {slow['errors'] or ''}"
        )
        console.print("  share of the processors:", slow["cpu_share"])
        console.print("  machine:", slow["machine"])
        for name in (
            "token_added_ms",
            "token_added_at_speed_ms",
            "first_token_added_ms",
            "idle_first_token_added_ms",
        ):
            console.print(f"  {name}:", slow[name])
    console.print("goals met:", report["met"])


async def measure(args: argparse.Namespace) -> dict[str, Any]:
    """The wanted phases, one after the other."""
    cancel_on_sigterm()
    report: dict[str, Any] = {"benchmark": "suite", "num_cpus": os.cpu_count(), "goals": GOALS}
    if args.only in (None, "throughput"):
        report["throughput"] = await with_suite(args, 0.0, throughput)
    if args.only in (None, "paced"):
        report["paced"] = await with_suite(args, args.step_ms, paced)
    report["met"] = verdicts(report)
    return report


def main() -> int:
    """Run; 1 when a request failed or the suite did not start. Goals are reported, not enforced: machines differ."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--port", type=int, default=22010, help="base port of the suite (default: %(default)s)"
    )
    parser.add_argument("--only", choices=("throughput", "paced"))
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=12, help="requests a stream in the throughput phase")
    parser.add_argument("--output", type=int, default=256, help="tokens a request in the throughput phase")
    parser.add_argument("--paced-streams", type=int, default=32)
    parser.add_argument("--paced-rounds", type=int, default=8)
    parser.add_argument("--step-ms", type=float, default=10.0)
    parser.add_argument("--up-args", nargs=argparse.REMAINDER, default=[], help="more flags for `quire up`")
    parser.add_argument("--lock", type=Path, help="hold this file's lock while measuring (a shared machine)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the report here")
    args = parser.parse_args()
    try:
        report = uvloop.run(measure(args))
    except (asyncio.CancelledError, KeyboardInterrupt):
        return 130
    except (ServerFailed, ValueError, OSError) as error:
        console.print(f"[red]suite: {error}", highlight=False)
        return 1
    show(report)
    emit(report, args.json)
    return (
        1 if any(report[phase]["num_errors"] for phase in ("throughput", "paced") if phase in report) else 0
    )


if __name__ == "__main__":
    sys.exit(main())
