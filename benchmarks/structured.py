"""Measure structured output: does what a real model writes match 200 schemas, and what do the masks cost?

    python benchmarks/structured.py [--port 22040] [--schemas 200]

Starts the suite with SmolLM2 and asks for JSON of schemas of twenty families at temperature 1, some at a time. Each
answer is checked with `jsonschema`; one that `max_tokens` cut must say so. Then the same load again without schemas.
From the services' metrics: time to make a mask, time that sampling waited for one, and their shares of the steps' time.
The last line of stdout is one JSON object; exit status 1 if an answer does not match, or a request failed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import sys
import tempfile
import urllib.error
import urllib.request
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import uvloop

from quire_bench.models import only_model
from quire_bench.report import console, emit
from quire_bench.schemas import Schema, schemas
from quire_bench.server_process import Server, ServerFailed, cancel_on_sigterm, running

SCHEDULER_METRICS_OFFSET, WORKER_METRICS_OFFSET = 13, 14
METRIC = re.compile(r"^(quire_\w+)(?:\{[^}]*\})? (\S+)$", re.MULTILINE)
VALIDATOR = jsonschema.Draft202012Validator


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of one request: `verdict` is valid, cut (and said so), or what is wrong."""

    family: str
    verdict: str
    num_tokens: int = 0


def ask(
    url: str, model: str, family: str, schema: Schema | None, args: argparse.Namespace, seed: int
) -> Answer:
    """One chat completion, checked."""
    body: dict[str, Any] = {
        "model": model,
        "messages": [{"role": "user", "content": f"Write JSON about a {family.replace('_', ' ')} thing."}],
        "temperature": 1.0,
        "max_tokens": args.max_tokens,
        "seed": seed,
    }
    if schema is not None:
        body["response_format"] = {"type": "json_schema", "json_schema": {"name": family, "schema": schema}}
    request = urllib.request.Request(
        f"{url}/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=600) as response:
            answer = json.load(response)
    except urllib.error.HTTPError as error:
        return Answer(family, f"refused: {error.read().decode()[:200]}")
    choice, num_tokens = answer["choices"][0], answer["usage"]["completion_tokens"]
    if choice["finish_reason"] == "length":
        return Answer(family, "cut", num_tokens)
    return Answer(
        family, "valid" if schema is None else _verdict(choice["message"]["content"], schema), num_tokens
    )


def _verdict(text: str, schema: Schema) -> str:
    try:
        VALIDATOR(schema, format_checker=VALIDATOR.FORMAT_CHECKER).validate(json.loads(text))
    except (ValueError, jsonschema.ValidationError) as error:
        return f"does not match: {str(error).splitlines()[0]}: {text[:200]}"
    return "valid"


def metrics(port: int) -> Counter[str]:
    """Every metric of scheduler and worker, summed over its labels."""
    found: Counter[str] = Counter()
    for offset in (SCHEDULER_METRICS_OFFSET, WORKER_METRICS_OFFSET):
        with urllib.request.urlopen(f"http://127.0.0.1:{port + offset}/metrics", timeout=10) as page:
            for name, value in METRIC.findall(page.read().decode()):
                found[name] += float(value)
    return found


async def load(
    server: Server, model: str, wanted: list[tuple[str, Schema | None]], args: argparse.Namespace
) -> tuple[list[Answer], Counter[str]]:
    """All requests, some at a time; their answers, and by how much the metrics rose."""
    before = await asyncio.to_thread(metrics, args.port)
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(args.concurrency) as pool:
        answers = await asyncio.gather(
            *(
                loop.run_in_executor(pool, ask, server.url, model, family, schema, args, seed)
                for seed, (family, schema) in enumerate(wanted)
            )
        )
    after = await asyncio.to_thread(metrics, args.port)
    after.subtract(before)
    return list(answers), after


def costs(rise: Counter[str]) -> dict[str, float]:
    """What the masks cost, from the rise of the metrics."""
    tokens, steps_s = max(1.0, rise["quire_scheduler_masked_tokens_total"]), rise["quire_step_seconds_sum"]
    mask_s, wait_s = (
        rise["quire_scheduler_mask_seconds_total"],
        rise["quire_scheduler_mask_wait_seconds_total"],
    )
    return {
        "num_masked_tokens": tokens,
        "mask_us_per_token": round(mask_s / tokens * 1e6, 1),
        "mask_share_of_step": round(mask_s / steps_s, 5),
        "mask_wait_us_per_token": round(wait_s / tokens * 1e6, 1),
        "mask_wait_share_of_step": round(wait_s / steps_s, 5),
        "compile_ms_per_grammar": round(
            rise["quire_scheduler_grammar_seconds_total"]
            / max(1.0, rise["quire_scheduler_grammars_total"])
            * 1e3,
            2,
        ),
    }


def step_ms(rise: Counter[str]) -> dict[str, float]:
    """Mean milliseconds of a step, whole and the worker's parts."""
    parts = {part: f"quire_worker_{part}_seconds" for part in ("forward", "sample", "mask_wait")}
    names = {"step": "quire_step_seconds", **parts}
    steps = max(1.0, rise["quire_step_seconds_count"])
    return {part: round(rise[f"{name}_sum"] / steps * 1e3, 3) for part, name in names.items()}


async def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Both loads on one suite."""
    cancel_on_sigterm()
    command = [str(Path(sys.executable).parent / "quire"), "up", "--port", str(args.port)]
    url = f"http://127.0.0.1:{args.port}/v1"
    wanted = schemas(args.schemas)
    with tempfile.TemporaryDirectory(prefix="quire-bench-") as folder:
        log = Path(folder) / "suite.log"
        async with running("the suite", command, url, log, ready_timeout_s=180.0) as server:
            model = await only_model(server.url)
            answers, rise = await load(server, model, list(wanted), args)
            _, free_rise = await load(server, model, [(family, None) for family, _ in wanted], args)
    verdicts = Counter(
        answer.verdict if answer.verdict in ("valid", "cut") else "wrong" for answer in answers
    )
    return {
        "benchmark": "structured",
        "num_schemas": len(wanted),
        "num_families": len({family for family, _ in wanted}),
        "num_valid": verdicts["valid"],
        "num_cut": verdicts["cut"],
        "num_wrong": verdicts["wrong"],
        "wrong": [f"{a.family}: {a.verdict}" for a in answers if a.verdict not in ("valid", "cut")],
        "num_output_tokens": sum(answer.num_tokens for answer in answers),
        **costs(rise),
        "step_ms": step_ms(rise),
        "step_ms_without_schemas": step_ms(free_rise),
    }


def show(report: dict[str, Any]) -> None:
    """The report for people."""
    console.print(
        f"{report['num_schemas']} schemas of {report['num_families']} families: {report['num_valid']} answers match, "
        f"{report['num_cut']} were cut by max_tokens and say so, {report['num_wrong']} are wrong"
    )
    for wrong in report["wrong"]:
        console.print(f"  [red]{wrong}", highlight=False)
    console.print(
        f"a mask takes {report['mask_us_per_token']} us to make ({report['mask_share_of_step']:.2%} of the steps' "
        f"time, beside the forward pass); sampling waited {report['mask_wait_us_per_token']} us a token for it "
        f"({report['mask_wait_share_of_step']:.2%})"
    )
    console.print(f"compiling took {report['compile_ms_per_grammar']} ms a grammar")
    console.print("milliseconds of a step:", report["step_ms"], "without:", report["step_ms_without_schemas"])


def main() -> int:
    """Run; 1 when an answer is wrong or the suite did not start."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--port", type=int, default=22040, help="base port of the suite (default: %(default)s)"
    )
    parser.add_argument("--schemas", type=int, default=200)
    parser.add_argument("--concurrency", type=int, default=8, help="requests at a time")
    parser.add_argument("--max-tokens", type=int, default=256)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the report here")
    args = parser.parse_args()
    try:
        report = uvloop.run(measure(args))
    except (asyncio.CancelledError, KeyboardInterrupt):
        return 130
    except (ServerFailed, ValueError, OSError) as error:
        console.print(f"[red]structured: {error}", highlight=False)
        return 1
    show(report)
    emit(report, args.json)
    return 1 if report["num_wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
