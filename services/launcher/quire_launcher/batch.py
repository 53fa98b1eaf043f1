"""`quire batch`: a file of requests from upload to answers, through the OpenAI endpoints like any other client.

One job: the terminal. It knows the HTTP API alone, so it also talks to a suite elsewhere.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from quire_launcher.chat import ChatError, check

#: States in which nothing changes any more.
ENDED = ("completed", "failed", "expired", "cancelled")


class BatchClient:
    """Files and batch jobs of one server."""

    def __init__(self, url: str, api_key: str | None = None) -> None:
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self.url = url
        self._http = httpx.Client(
            base_url=url.rstrip("/") + "/", headers=headers, timeout=httpx.Timeout(10, read=120)
        )

    def start(self, file: Path) -> dict[str, Any]:
        """Upload the file and start its job. Raises ChatError."""
        endpoint = endpoint_of(file)
        with file.open("rb") as data:
            files = {"file": (file.name, data, "application/jsonl")}
            uploaded = self._send("POST", "files", files=files, data={"purpose": "batch"})
        body = {"input_file_id": uploaded["id"], "endpoint": endpoint, "completion_window": "24h"}
        return self._send("POST", "batches", json=body)

    def get(self, batch_id: str) -> dict[str, Any]:
        """The job now. Raises ChatError."""
        return self._send("GET", f"batches/{batch_id}")

    def cancel(self, batch_id: str) -> dict[str, Any]:
        """End the job. Raises ChatError."""
        return self._send("POST", f"batches/{batch_id}/cancel")

    def download(self, file_id: str, path: Path) -> None:
        """Write a file of the server's to `path`. Raises ChatError."""
        try:
            with self._http.stream("GET", f"files/{file_id}/content") as answer:
                if answer.status_code != 200:
                    answer.read()
                check(answer)
                with path.open("wb") as out:
                    for piece in answer.iter_bytes():
                        out.write(piece)
        except httpx.HTTPError as error:
            raise ChatError(f"the connection was lost: {error}") from error

    def _send(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        try:
            answer = self._http.request(method, path, **options)
        except httpx.ConnectError as error:
            raise ChatError(
                f"nothing answers at {self.url} ({error}); start a suite with: quire up"
            ) from error
        except httpx.HTTPError as error:
            raise ChatError(f"the connection was lost: {error}") from error
        check(answer)
        document: dict[str, Any] = answer.json()
        return document


def endpoint_of(file: Path) -> str:
    """The endpoint that the file's first request names. Raises ChatError for a file that cannot be a job."""
    try:
        with file.open("rb") as data:
            first = next((line for line in data if line.strip()), b"")
        document = json.loads(first)
        return str(document["url"])
    except OSError as error:
        raise ChatError(f"cannot read {file}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise ChatError(f'{file}: its first line is no request (an object with "url" and "body")') from error


def run_batch(
    client: BatchClient,
    file: Path | None,
    batch_id: str | None,
    *,
    output: Path | None,
    errors: Path | None,
    cancel: bool = False,
    poll_s: float = 0.5,
) -> int:
    """Run `file`, or follow the job `batch_id`, to its end and fetch its answers; the exit status.

    0: every request was answered well. 1: some were not, or the job did not end well.
    """
    try:
        if batch_id is None:
            assert file is not None, "a file or a job"
            job = client.start(file)
            print(f"quire: {job['id']} on {job['endpoint']}", file=sys.stderr)
        else:
            job = client.cancel(batch_id) if cancel else client.get(batch_id)
        job = _follow(client, job, poll_s)
        stem = file or Path(job["id"])
        _fetch(client, job["output_file_id"], output or Path(f"{stem}.output.jsonl"))
        _fetch(client, job["error_file_id"], errors or Path(f"{stem}.errors.jsonl"))
    except ChatError as error:
        print(f"quire: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"\nquire: the job goes on; see it with: quire batch --id {job['id']}", file=sys.stderr)
        return 130
    return _report(job)


def _follow(client: BatchClient, job: dict[str, Any], poll_s: float) -> dict[str, Any]:
    with _bar() as show:
        show(job)
        while job["status"] not in ENDED:
            time.sleep(poll_s)
            job = client.get(job["id"])
            show(job)
    return job


@contextmanager
def _bar() -> Iterator[Any]:
    """A function that shows how far a job is: a bar on a terminal, one line for each state elsewhere."""
    if not sys.stderr.isatty():
        told: list[str] = []

        def say(job: dict[str, Any]) -> None:
            if job["status"] not in told:
                told.append(job["status"])
                print(f"quire: {job['status']}", file=sys.stderr)

        yield say
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description:>12}"),
        BarColumn(40),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(file=sys.stderr), transient=True) as progress:
        task = progress.add_task("", total=None)

        def show(job: dict[str, Any]) -> None:
            counts = job["request_counts"]
            done = counts["completed"] + counts["failed"]
            progress.update(task, description=job["status"], completed=done, total=counts["total"] or None)

        yield show


def _fetch(client: BatchClient, file_id: str | None, path: Path) -> None:
    if file_id is None:
        return
    try:
        client.download(file_id, path)
    except OSError as error:
        raise ChatError(f"cannot write {path}: {error.strerror}") from error
    print(path)


def _report(job: dict[str, Any]) -> int:
    counts = job["request_counts"]
    print(
        f"quire: {job['status']}: {counts['completed']} answered, {counts['failed']} failed", file=sys.stderr
    )
    for error in (job["errors"] or {}).get("data", ()):
        line = f"line {error['line']}: " if error.get("line") else ""
        print(f"    {line}{error['message']}", file=sys.stderr)
    return 0 if job["status"] == "completed" and not counts["failed"] else 1
