"""Shows a run to a person: a progress bar while it goes on, and a table after it. Everything goes to stderr.

The last line of stdout belongs to the machine-readable JSON; printing it is here too, so that all scripts do it alike.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from quire_bench.load import OnRecord
from quire_bench.openai_client import RequestRecord

console = Console(stderr=True)


@contextmanager
def progress(title: str, num_requests: int) -> Iterator[OnRecord]:
    """A progress bar of finished requests, with failures beside it; gives the function to call with each record."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[failed]}"),
    )
    # Few refreshes: the bar shares the processors with what is measured.
    with Progress(*columns, console=console, refresh_per_second=2, transient=True) as bar:
        task = bar.add_task(title, total=num_requests, failed="")
        num_failed = 0

        def on_record(record: RequestRecord) -> None:
            nonlocal num_failed
            num_failed += not record.ok
            bar.update(task, advance=1, failed=f"[red]{num_failed} failed" if num_failed else "")

        yield on_record


def show(title: str, summary: dict[str, Any]) -> None:
    """Print a run's summary (see stats.summarise) as a table."""
    table = Table(title=title, title_justify="left", show_edge=False)
    for column in ("", "mean", "p50", "p90", "p99", "max"):
        table.add_column(column, justify="left" if not column else "right")
    names = {
        "ttft_ms": "time to first token, ms",
        "tpot_ms": "time per output token, ms",
        "itl_ms": "between chunks, ms",
        "e2e_ms": "whole request, ms",
    }
    for key, name in names.items():
        values = summary[key]
        if values is not None:
            table.add_row(name, *(f"{values[c]:.1f}" for c in ("mean", "p50", "p90", "p99", "max")))
    console.print(table)
    counts = ", ".join(f"{source}: {number}" for source, number in summary["token_count_source"].items())
    console.print(
        f"{summary['output_tokens_per_s']:.1f} output tok/s, {summary['requests_per_s']:.2f} req/s, "
        f"{summary['num_ok']} of {summary['num_requests']} ok in {summary['duration_s']:.1f} s; "
        f"tokens counted by {counts or 'nothing'}; {summary['tokens_per_chunk']} tokens a chunk"
    )
    if summary["num_short_answers"]:
        console.print(f"[yellow]{summary['num_short_answers']} answers are shorter than asked for")
    if "goodput" in summary:
        good = summary["goodput"]
        console.print(
            f"goodput {good['requests_per_s']:.2f} req/s ({good['share']:.1%} within {good['limits']})"
        )
    for message, number in summary["errors"].items():
        console.print(f"[red]{number} failed: {message}", markup=True, highlight=False)


def emit(report: dict[str, Any], path: Path | None = None) -> None:
    """Write the report to `path`, if given, and as the last line of stdout."""
    if path is not None:
        path.write_text(json.dumps(report, indent=2) + "\n")
    print(json.dumps(report, separators=(",", ":")))
    sys.stdout.flush()
