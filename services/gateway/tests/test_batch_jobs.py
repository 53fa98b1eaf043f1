"""Batch jobs on disk: what a restart finds, whatever the process was doing when it ended."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from quire_gateway.batches.job import JobStatus
from quire_gateway.batches.journal import Journal
from quire_gateway.batches.runner import BatchRunner
from quire_gateway.file_store import FileInfo, FileStore
from quire_gateway.http_answer import Head
from quire_servicekit.errors import FailedPrecondition, InvalidRequest, UnknownRequest

CHAT = "/v1/chat/completions"


def line(number: int, text: str) -> dict[str, Any]:
    """One request of a job."""
    body = {"messages": [{"role": "user", "content": text}]}
    return {"custom_id": f"r{number}", "method": "POST", "url": CHAT, "body": body}


def lines(*documents: Any) -> bytes:
    """A file of them."""
    return b"".join(json.dumps(document).encode() + b"\n" for document in documents)


class Endpoint:
    """Counts how often each text was asked, and holds answers back until it is told."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.free = asyncio.Event()

    async def __call__(self, body: bytes, call: Any) -> Any:
        text = json.loads(body)["messages"][0]["content"]
        self.asked.append(text)
        if int(text) >= 5:
            await self.free.wait()
        yield Head()
        yield json.dumps({"said": text}).encode()


def runner_of(folder: Path, endpoint: Endpoint, **options: Any) -> BatchRunner:
    """A runner over a folder."""
    options = {"max_bytes": 1 << 20, "concurrency": 4, "priority": 100, **options}
    return BatchRunner(folder, {CHAT: endpoint}, **options)


def put(runner: BatchRunner, data: bytes) -> str:
    """The id of a new file."""
    info = FileInfo(id="file-1", tenant="", filename="f", purpose="batch", num_bytes=0, created_at=1)
    return runner.files.add([data], info).id


async def until(condition: Any) -> None:
    """Wait for it."""
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.005)


async def test_a_restart_loses_nothing_and_repeats_nothing(tmp_path: Path) -> None:
    """After a stop in the middle, and with a torn last line, each line's answer is in the output exactly once."""
    endpoint = Endpoint()
    runner = runner_of(tmp_path, endpoint)
    runner.start()
    job = runner.create("", CHAT, put(runner, lines(*(line(n, str(n)) for n in range(12)))), {})
    await until(lambda: job.num_completed == 5)
    await runner.close()
    answers = tmp_path / "jobs" / job.id / "answers.jsonl"
    with answers.open("ab") as file:
        file.write(b'{"line": 7, "ok": true, "rec')
    endpoint.free.set()
    again = runner_of(tmp_path, endpoint)
    again.start()
    found = again.get(job.id, "")
    await until(lambda: found.is_over)
    await again.close()
    assert (found.status, found.num_completed, found.num_failed) == (JobStatus.COMPLETED, 12, 0)
    records = [json.loads(data) for data in again.files.path(found.output_file_id).read_bytes().splitlines()]
    assert [record["custom_id"] for record in records] == [f"r{n}" for n in range(12)]
    assert [record["response"]["body"]["said"] for record in records] == [str(n) for n in range(12)]
    # What was answered before the stop was not asked again.
    assert all(endpoint.asked.count(str(n)) == 1 for n in range(5))


async def test_a_crash_while_the_files_are_written_does_no_harm(tmp_path: Path) -> None:
    """Writing the output again gives the same file under the same id."""
    endpoint = Endpoint()
    runner = runner_of(tmp_path, endpoint)
    runner.start()
    job = runner.create("", CHAT, put(runner, lines(line(0, "0"))), {})
    await until(lambda: job.is_over)
    await runner.close()
    path = tmp_path / "jobs" / job.id / "job.json"
    document = json.loads(path.read_text())
    path.write_text(json.dumps(document | {"status": "finalizing"}))
    again = runner_of(tmp_path, endpoint)
    again.start()
    found = again.get(job.id, "")
    await until(lambda: found.is_over)
    await again.close()
    assert (found.status, found.output_file_id) == (JobStatus.COMPLETED, job.output_file_id)
    assert len(again.files.list("")) == 2
    assert endpoint.asked == ["0"]


async def test_a_cancel_survives_a_crash(tmp_path: Path) -> None:
    """A job that was being cancelled is cancelled after the restart, and runs nothing more."""
    endpoint = Endpoint()
    runner = runner_of(tmp_path, endpoint)
    runner.start()
    job = runner.create("", CHAT, put(runner, lines(line(0, "0"), line(1, "9"))), {})
    await until(lambda: job.num_completed == 1)
    await runner.close()
    path = tmp_path / "jobs" / job.id / "job.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"status": "cancelling"}))
    again = runner_of(tmp_path, endpoint)
    again.start()
    found = again.get(job.id, "")
    await until(lambda: found.is_over)
    await again.close()
    assert (found.status, found.num_completed, endpoint.asked) == (JobStatus.CANCELLED, 1, ["0", "9"])


async def test_a_job_ends_with_its_window(tmp_path: Path) -> None:
    """Lines that could not run in time are in the error file, each saying so."""
    now, endpoint = [1000.0], Endpoint()
    runner = runner_of(tmp_path, endpoint, clock=lambda: now[0])
    runner.start()
    job = runner.create("", CHAT, put(runner, lines(line(0, "0"), line(1, "9"))), {})
    await until(lambda: job.num_completed == 1)
    await runner.close()
    now[0] += 25 * 3600
    again = runner_of(tmp_path, endpoint, clock=lambda: now[0])
    again.start()
    found = again.get(job.id, "")
    await until(lambda: found.is_over)
    await again.close()
    assert (found.status, found.num_completed, found.num_failed) == (JobStatus.EXPIRED, 1, 1)
    (record,) = map(json.loads, again.files.path(found.error_file_id).read_bytes().splitlines())
    assert (record["custom_id"], record["error"]["code"]) == ("r1", "batch_expired")


async def test_a_folder_has_one_owner(tmp_path: Path) -> None:
    """A second process on the same folder does not start; after the first one's end it does."""
    first, second = runner_of(tmp_path, Endpoint()), runner_of(tmp_path, Endpoint())
    first.start()
    with pytest.raises(FailedPrecondition, match="another process"):
        second.start()
    await first.close()
    second.start()
    await second.close()


def test_the_files_together_are_bounded(tmp_path: Path) -> None:
    """A file for which there is no room is refused and leaves nothing behind; halves of a crash are removed."""
    store = FileStore(tmp_path, max_bytes=10)
    store.load()
    info = FileInfo(id="file-a", tenant="t", filename="f", purpose="batch", num_bytes=0, created_at=1)
    store.add([b"123456"], info)
    with pytest.raises(InvalidRequest):
        store.add(
            [b"123", b"456"],
            FileInfo(id="file-b", tenant="t", filename="f", purpose="batch", num_bytes=0, created_at=1),
        )
    (tmp_path / "file-c.data").write_bytes(b"half")
    (tmp_path / "file-d.data.new").write_bytes(b"half")
    again = FileStore(tmp_path, max_bytes=10)
    again.load()
    assert [found.id for found in again.list("t")] == ["file-a"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file-a.data", "file-a.json"]
    with pytest.raises(UnknownRequest):
        again.get("file-a", "other")


def test_a_journal_ends_at_its_last_whole_line(tmp_path: Path) -> None:
    """What was cut off is written anew; what is whole stays."""
    path = tmp_path / "j"
    with Journal(path) as journal:
        journal.append(3, {"a": 1}, is_ok=True)
        journal.append(1, {"b": 2}, is_ok=False)
    with path.open("ab") as file:
        file.write(b'{"line": 2')
    with Journal(path) as journal:
        assert (sorted(journal.places), journal.num_ok) == ([1, 3], 1)
        journal.append(2, {"c": 3}, is_ok=True)
        assert list(journal.records(is_ok=True)) == [b'{"c":3}\n', b'{"a":1}\n']
        assert list(journal.records(is_ok=False)) == [b'{"b":2}\n']
