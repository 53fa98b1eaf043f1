"""Measure any OpenAI-compatible server under load: latency to the first token and between tokens, throughput, goodput.

    python benchmarks/serving.py --url http://127.0.0.1:8080/v1 --workload C2
    python benchmarks/serving.py --url ... --workload random --num-requests 200 --input 512 --output 128 --rate 4
    python benchmarks/serving.py --url ... --dataset chats.jsonl --endpoint chat --goodput ttft:500 tpot:50

Without --rate the load is a closed loop of --concurrency clients; with it an open loop (Poisson arrivals, or
--constant).
The last line of stdout is one JSON object. The exit status is 1 when a request failed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from quire_bench import workloads
from quire_bench.load import Client, LoadResult, closed_loop, open_loop
from quire_bench.models import only_model
from quire_bench.openai_client import ApiOptions
from quire_bench.report import console, emit, progress, show
from quire_bench.stats import ServiceLevel, summarise
from quire_bench.workloads import Workload


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--url", default="http://127.0.0.1:8080/v1", help="base URL, /v1 included (default: %(default)s)"
    )
    parser.add_argument("--model", help="model name (default: the only one of /models)")
    parser.add_argument("--endpoint", choices=("completions", "chat"), default="completions")
    parser.add_argument("--api-key", help="sent as a bearer token")
    names = [*workloads.NAMED, "random", "shared-prefix", "chat-lengths"]
    parser.add_argument("--workload", choices=names, default="random")
    parser.add_argument("--dataset", type=Path, help="JSONL file of requests, in place of --workload")
    parser.add_argument("--num-requests", type=int, default=64)
    parser.add_argument(
        "--input", type=int, default=128, help="prompt tokens (shared-prefix: tokens after the prefix)"
    )
    parser.add_argument("--output", type=int, default=128, help="new tokens")
    parser.add_argument("--prefix", type=int, default=1024, help="shared tokens of shared-prefix")
    parser.add_argument(
        "--prompt-form", choices=("ids", "words"), help="default: ids for completions, words for chat"
    )
    parser.add_argument(
        "--concurrency", type=int, help="clients of the closed loop (default: the workload's)"
    )
    parser.add_argument("--rate", type=float, help="requests a second: open loop")
    parser.add_argument("--constant", action="store_true", help="evenly spaced arrivals rather than Poisson")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-stream", action="store_true")
    parser.add_argument(
        "--no-ignore-eos", action="store_true", help="let answers end where the model ends them"
    )
    parser.add_argument(
        "--no-usage", action="store_true", help="do not ask for usage (count by fixed length or chunks)"
    )
    parser.add_argument(
        "--continuous-usage", action="store_true", help="ask for a running count in every chunk"
    )
    parser.add_argument(
        "--extra-body", type=json.loads, default={}, help="JSON object merged into every request"
    )
    parser.add_argument(
        "--goodput", nargs="+", metavar="NAME:MS", help="limits, such as ttft:500 tpot:50 e2e:9000"
    )
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds a request may take")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the report here")
    return parser.parse_args(argv)


def choose_workload(args: argparse.Namespace) -> Workload:
    """The workload that the arguments name, in the wanted form. ValueError for a bad dataset."""
    if args.dataset is not None:
        workload = workloads.from_dataset(
            args.dataset, default_max_tokens=args.output, limit=args.num_requests
        )
    elif args.workload in workloads.NAMED:
        workload = workloads.NAMED[args.workload](args.seed)
    elif args.workload == "shared-prefix":
        workload = workloads.shared_prefix(
            "shared-prefix", args.num_requests, args.prefix, args.input, args.output, seed=args.seed
        )
    elif args.workload == "chat-lengths":
        workload = workloads.lognormal_lengths(
            "chat-lengths", args.num_requests, seed=args.seed, mean_input=args.input, mean_output=args.output
        )
    else:
        workload = workloads.random_prompts(
            "random", args.num_requests, args.input, args.output, seed=args.seed
        )
    if (args.prompt_form or ("words" if args.endpoint == "chat" else "ids")) == "words":
        workload = workloads.as_words(workload, seed=args.seed)
    return replace(workload, concurrency=args.concurrency or workload.concurrency)


async def run_workload(
    client: Client, workload: Workload, *, rate: float | None = None, constant: bool = False, seed: int = 0
) -> LoadResult:
    """Warm up, then run the workload in the loop that was asked for."""
    for request in workload.warm_up:
        await client.generate(request)
    with progress(workload.name, len(workload.requests)) as on_record:
        if rate is None:
            return await closed_loop(client, workload.requests, workload.concurrency, on_record)
        return await open_loop(
            client, workload.requests, rate, poisson=not constant, seed=seed, on_record=on_record
        )


async def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Run what the arguments say; the report."""
    workload = choose_workload(args)
    level = ServiceLevel.parse(args.goodput) if args.goodput else None
    headers = {"Authorization": f"Bearer {args.api_key}"} if args.api_key else {}
    options = ApiOptions(
        model=args.model or await only_model(args.url, headers),
        endpoint=args.endpoint,
        stream=not args.no_stream,
        ignore_eos=not args.no_ignore_eos,
        include_usage=not args.no_usage,
        continuous_usage=args.continuous_usage,
        extra=args.extra_body,
    )
    client = Client(args.url, options, timeout_s=args.timeout, headers=headers)
    try:
        result = await run_workload(client, workload, rate=args.rate, constant=args.constant, seed=args.seed)
    finally:
        client.close()
    load = (
        f"closed loop, {workload.concurrency} clients"
        if args.rate is None
        else f"open loop, {args.rate:g} req/s"
    )
    summary = summarise(result, level)
    show(f"{workload.name}: {workload.description}; {load}", summary)
    return {
        "benchmark": "serving",
        "url": args.url,
        "model": options.model,
        "endpoint": options.endpoint,
        "workload": workload.name,
        "description": workload.description,
        "loop": "closed" if args.rate is None else ("constant" if args.constant else "poisson"),
        "concurrency": workload.concurrency if args.rate is None else None,
        "rate_per_s": args.rate,
        "seed": args.seed,
        **summary,
    }


def main() -> int:
    """Run; 0 when every request ended well, 1 when one failed, 2 for a usage error."""
    args = parse_arguments()
    try:
        report = asyncio.run(measure(args))
    except (ValueError, OSError) as error:
        console.print(f"[red]serving: {error}", highlight=False)
        return 2
    emit(report, args.json)
    return 1 if report["num_errors"] else 0


if __name__ == "__main__":
    sys.exit(main())
