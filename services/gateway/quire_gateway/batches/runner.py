"""Runs batch jobs.

One job: take each line through its endpoint, a bounded number at once, and keep every answer exactly once. What it
needs to go on after a crash is on disk before it is told to anybody. Knows no dialect: endpoints turn bytes into bytes.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import time
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import IO, Any

import orjson

from quire_gateway.batches.input_lines import InputLines, check_lines
from quire_gateway.batches.job import TRANSITIONS, Job, JobStatus
from quire_gateway.batches.journal import Journal
from quire_gateway.file_store import FileInfo, FileStore, new_file_id, write_json
from quire_gateway.http_answer import Head, Pieces
from quire_gateway.requests import CallInfo
from quire_servicekit.errors import FailedPrecondition, UnknownRequest
from quire_servicekit.logging import get_logger

log = get_logger("batches")

Endpoint = Callable[[bytes, CallInfo], Pieces]

WINDOW_S = 24 * 3600
#: Statuses that say "later": the line is tried again.
_LATER = frozenset({429, 503, 529})
_MAX_DELAY_S = 30.0


class BatchRunner:
    """The jobs of one folder. One process at a time has it."""

    def __init__(
        self,
        folder: Path,
        endpoints: Mapping[str, Endpoint],
        *,
        max_bytes: int,
        concurrency: int,
        priority: int,
        is_ready: Callable[[], bool] = lambda: True,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """endpoints: by path. priority: of lines that name none. is_ready: whether requests can be served now."""
        self._folder, self.endpoints = folder, endpoints
        self.files = FileStore(folder / "files", max_bytes=max_bytes)
        self._places = asyncio.Semaphore(concurrency)
        self._concurrency, self._priority, self._is_ready, self._clock = (
            concurrency,
            priority,
            is_ready,
            clock,
        )
        self._jobs: dict[str, Job] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._lock: IO[str] | None = None
        self._is_closing = False

    # ---- Life --------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Take the folder and go on with what was not over. Raises FailedPrecondition if another process has it."""
        (self._folder / "jobs").mkdir(parents=True, exist_ok=True)
        lock = (self._folder / "lock").open("a")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            lock.close()
            raise FailedPrecondition(f"batch_folder {self._folder} is used by another process") from error
        self._lock = lock
        self.files.load()
        for path in sorted((self._folder / "jobs").glob("*/job.json")):
            job = Job.from_document(json.loads(path.read_text(encoding="utf-8")))
            self._jobs[job.id] = job
            if not job.is_over:
                self._begin(job)

    async def close(self) -> None:
        """Stop working; what is not done goes on at the next start."""
        self._is_closing = True
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    # ---- Jobs --------------------------------------------------------------------------------------------------

    def create(self, tenant: str, endpoint: str, input_file_id: str, metadata: dict[str, str]) -> Job:
        """Start a job on a file that is there."""
        now = int(self._clock())
        job = Job(
            id=f"batch_{uuid.uuid4().hex}",
            tenant=tenant,
            endpoint=endpoint,
            input_file_id=input_file_id,
            output_file_id=new_file_id(),
            error_file_id=new_file_id(),
            created_at=now,
            expires_at=now + WINDOW_S,
            metadata=metadata,
        )
        (self._folder / "jobs" / job.id).mkdir()
        self._save(job)
        self._jobs[job.id] = job
        self._begin(job)
        return job

    def get(self, job_id: str, tenant: str) -> Job:
        """Raises UnknownRequest, also for another tenant's."""
        job = self._jobs.get(job_id)
        if job is None or job.tenant != tenant:
            raise UnknownRequest(job_id, message=f"No such Batch object: {job_id}")
        return job

    def list(self, tenant: str) -> list[Job]:
        """The tenant's jobs, the newest first."""
        mine = [job for job in self._jobs.values() if job.tenant == tenant]
        return sorted(mine, key=lambda job: (job.created_at, job.id), reverse=True)

    def cancel(self, job_id: str, tenant: str) -> Job:
        """End a job: answers that are there are kept. Idempotent. Raises as `get` does."""
        job = self.get(job_id, tenant)
        if JobStatus.CANCELLING in TRANSITIONS[job.status]:
            job.enter(JobStatus.CANCELLING, self._clock())
            self._save(job)
            self._tasks[job.id].cancel()
        return job

    def uses(self, file_id: str) -> bool:
        """Whether a job that is not over reads the file."""
        return any(job.input_file_id == file_id and not job.is_over for job in self._jobs.values())

    def _begin(self, job: Job) -> None:
        task = asyncio.get_running_loop().create_task(self._run(job), name=f"batch {job.id}")
        self._tasks[job.id] = task
        task.add_done_callback(lambda done: self._on_done(job, done))

    def _on_done(self, job: Job, task: asyncio.Task[None]) -> None:
        del self._tasks[job.id]
        if not self._is_closing and not job.is_over:
            # Cancelled by its client: another task brings it to its end.
            self._begin(job)

    # ---- One job -----------------------------------------------------------------------------------------------

    async def _run(self, job: Job) -> None:
        try:
            with Journal(self._folder / "jobs" / job.id / "answers.jsonl") as journal:
                await self._work(job, journal)
        except Exception as error:  # a job of ours that cannot go on must not look as if it did
            log.exception("batch failed", batch=job.id)
            job.errors = [
                {"code": "internal_error", "message": type(error).__name__, "param": None, "line": None}
            ]
            job.enter(JobStatus.FAILED, self._clock())
            self._save(job)

    async def _work(self, job: Job, journal: Journal) -> None:
        if job.status is JobStatus.CANCELLING:
            await self._finalize(job, journal, JobStatus.CANCELLED)
            return
        lines, errors = await asyncio.to_thread(check_lines, self.files.path(job.input_file_id), job.endpoint)
        if job.status is JobStatus.VALIDATING:
            if errors:
                job.errors = errors
                job.enter(JobStatus.FAILED, self._clock())
                self._save(job)
                return
            job.num_lines = len(lines.places)
            job.enter(JobStatus.IN_PROGRESS, self._clock())
            self._save(job)
        self._count(job, journal)
        try:
            async with asyncio.timeout(max(0.0, job.expires_at - self._clock())):
                await self._answer_all(job, journal, lines)
        except TimeoutError:
            self._expire(job, journal, lines)
        is_late = self._clock() >= job.expires_at
        if job.status is JobStatus.IN_PROGRESS:
            job.enter(JobStatus.FINALIZING, self._clock())
            self._save(job)
        await self._finalize(job, journal, JobStatus.EXPIRED if is_late else JobStatus.COMPLETED)

    async def _answer_all(self, job: Job, journal: Journal, lines: InputLines) -> None:
        """Every line without an answer, a bounded number at once."""
        left = iter([line for line in range(len(lines.places)) if line not in journal.places])

        async def work() -> None:
            for line in left:
                async with self._places:
                    await self._answer(job, journal, lines.read(line), line)

        async with asyncio.TaskGroup() as group:
            for _ in range(self._concurrency):
                group.create_task(work())

    async def _answer(self, job: Job, journal: Journal, request: dict[str, Any], line: int) -> None:
        body = orjson.dumps({"priority": self._priority, **request["body"]})
        request_id = f"batch_req_{uuid.uuid4().hex}"
        call = CallInfo(client_request_id=request_id, tenant=job.tenant)
        status, data = await self._ask(self.endpoints[job.endpoint], body, call)
        response = {"status_code": status, "request_id": request_id, "body": orjson.loads(data)}
        record = {"id": request_id, "custom_id": request["custom_id"], "response": response, "error": None}
        journal.append(line, record, is_ok=status == 200)
        self._count(job, journal)

    async def _ask(self, endpoint: Endpoint, body: bytes, call: CallInfo) -> tuple[int, bytes]:
        """Status and body of one request; a server that is busy or away is asked again."""
        delay_s = 0.5
        while True:
            if self._is_ready():
                head, data = await _read(endpoint(body, call))
                if head.status not in _LATER:
                    return head.status, data
                delay_s = max(delay_s, float(head.retry_after_s or 0))
            await asyncio.sleep(min(delay_s, _MAX_DELAY_S))
            delay_s = min(2 * delay_s, _MAX_DELAY_S)

    def _expire(self, job: Job, journal: Journal, lines: InputLines) -> None:
        """Say of each line without an answer that there was no time for it."""
        error = {
            "code": "batch_expired",
            "message": "This request could not be run before the batch expired.",
        }
        for line in range(len(lines.places)):
            if line not in journal.places:
                custom_id = lines.read(line)["custom_id"]
                record = {"id": f"batch_req_{uuid.uuid4().hex}", "custom_id": custom_id, "response": None}
                journal.append(line, record | {"error": error}, is_ok=False)
        self._count(job, journal)

    async def _finalize(self, job: Job, journal: Journal, status: JobStatus) -> None:
        """Write the files. Their ids are the job's from its beginning, so that doing it again changes nothing."""
        self._count(job, journal)
        for is_ok, file_id, name in (
            (True, job.output_file_id, "output"),
            (False, job.error_file_id, "error"),
        ):
            if any(place.is_ok == is_ok for place in journal.places.values()):
                info = FileInfo(
                    id=file_id,
                    tenant=job.tenant,
                    filename=f"{job.id}_{name}.jsonl",
                    purpose="batch_output",
                    num_bytes=0,
                    created_at=int(self._clock()),
                )
                await asyncio.to_thread(self.files.add, journal.records(is_ok=is_ok), info, is_ours=True)
        job.has_output, job.has_errors = job.num_completed > 0, job.num_failed > 0
        job.enter(status, self._clock())
        self._save(job)
        log.info(
            "batch ended",
            batch=job.id,
            status=str(status),
            completed=job.num_completed,
            failed=job.num_failed,
        )

    def _count(self, job: Job, journal: Journal) -> None:
        job.num_completed = journal.num_ok
        job.num_failed = len(journal.places) - job.num_completed

    def _save(self, job: Job) -> None:
        write_json(self._folder / "jobs" / job.id / "job.json", job.to_document())


async def _read(pieces: AsyncIterator[Head | bytes]) -> tuple[Head, bytes]:
    """A whole answer."""
    head, data = Head(), []
    async with aclosing(pieces) as opened:  # type: ignore[type-var]
        async for piece in opened:
            if isinstance(piece, bytes):
                data.append(piece)
            else:
                head = piece
    return head, b"".join(data)
