"""Drives a server: closed loop (so many clients, each one request at a time) or open loop (arrivals at a rate).

Every request ends as a RequestRecord, failed ones too. It makes no statistics.
"""

from __future__ import annotations

import asyncio
import gc
import random
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field

from quire_bench.http_client import Endpoint, HttpConnection
from quire_bench.openai_client import AnswerReader, ApiOptions, RequestRecord, request_body
from quire_bench.workloads import GenerationRequest

OnRecord = Callable[[RequestRecord], None]


@dataclass(slots=True)
class LoadResult:
    """All records of one run, and when it began and ended (time.perf_counter() seconds)."""

    records: list[RequestRecord] = field(default_factory=list)
    started: float = 0.0
    finished: float = 0.0

    @property
    def duration_s(self) -> float:
        """Seconds from the first request's start to the last one's end."""
        return self.finished - self.started


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Keep the client's own pauses out of what it measures: with many records a full collection takes 25 ms and more.

    Nothing here makes reference cycles, so little piles up meanwhile.
    """
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class Client:
    """Sends generation requests to one server over a pool of keep-alive connections, as many as run at once."""

    def __init__(
        self,
        url: str,
        options: ApiOptions,
        *,
        timeout_s: float = 600.0,
        headers: dict[str, str] | None = None,
        keep_text: bool = False,
        extension: str | None = None,
    ) -> None:
        self._endpoint = Endpoint.parse(url)
        self._options = options
        self._timeout_s = timeout_s
        self._headers = headers
        self._keep_text = keep_text
        self._extension = extension
        self._idle: list[HttpConnection] = []

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[HttpConnection]:
        connection = None
        while self._idle and connection is None:
            candidate = self._idle.pop()
            connection = candidate if candidate.usable else None
        if connection is None:
            connection = await HttpConnection.connect(self._endpoint)
        try:
            yield connection
        finally:
            if connection.usable:
                self._idle.append(connection)
            else:
                connection.close()

    async def open_connections(self, num_connections: int) -> None:
        """Connect before the clock starts, so that set-up is not measured."""
        while len(self._idle) < num_connections:
            self._idle.append(await HttpConnection.connect(self._endpoint))

    async def generate(self, request: GenerationRequest, *, scheduled: float | None = None) -> RequestRecord:
        """Send one request and wait for its end. Failures come back in the record's `error`, never as an exception."""
        record = RequestRecord(request.num_prompt_tokens, request.max_tokens)
        reader = AnswerReader(record, self._options, keep_text=self._keep_text, extension=self._extension)
        body = request_body(request, self._options)
        record.sent = time.perf_counter()
        record.scheduled = record.sent if scheduled is None else scheduled
        try:
            async with asyncio.timeout(self._timeout_s), self._connection() as connection:
                response = await connection.request(
                    "POST", self._options.path, body, reader.on_body, self._headers
                )
            reader.finish(response.status, time.perf_counter())
        except TimeoutError:
            record.error = f"no end within {self._timeout_s:g} s"
        except (
            OSError,
            ValueError,
            KeyError,
        ) as error:  # connection, framing, or an answer that is not the dialect's
            record.error = f"{type(error).__name__}: {error}"
        record.finished = record.finished or time.perf_counter()
        return record

    def close(self) -> None:
        """Close the idle connections."""
        for connection in self._idle:
            connection.close()
        self._idle.clear()


async def closed_loop(
    client: Client,
    requests: Iterable[GenerationRequest],
    concurrency: int,
    on_record: OnRecord | None = None,
) -> LoadResult:
    """`concurrency` clients take requests from one list, each the next as soon as its last has ended."""
    if concurrency < 1:
        raise ValueError(f"concurrency: at least 1, got {concurrency}")
    await client.open_connections(concurrency)
    source: Iterator[GenerationRequest] = iter(requests)

    with no_garbage_collection():
        result = LoadResult(started=time.perf_counter())

        async def run_client() -> None:
            for request in source:  # one iterator shared by all: next() is atomic in one event loop
                record = await client.generate(request)
                result.records.append(record)
                if on_record is not None:
                    on_record(record)

        async with asyncio.TaskGroup() as group:
            for _ in range(concurrency):
                group.create_task(run_client())
        result.finished = time.perf_counter()
    return result


async def open_loop(
    client: Client,
    requests: Iterable[GenerationRequest],
    rate_per_s: float,
    *,
    poisson: bool = True,
    seed: int = 0,
    on_record: OnRecord | None = None,
) -> LoadResult:
    """Requests start at `rate_per_s`, whatever the server does: Poisson arrivals, or evenly spaced ones."""
    if rate_per_s <= 0:
        raise ValueError(f"rate_per_s: more than 0, got {rate_per_s:g}")
    rng = random.Random(f"{seed}/arrivals")

    with no_garbage_collection():
        result = LoadResult(started=time.perf_counter())
        due = result.started

        async def run_one(request: GenerationRequest, scheduled: float) -> None:
            record = await client.generate(request, scheduled=scheduled)
            result.records.append(record)
            if on_record is not None:
                on_record(record)

        async with asyncio.TaskGroup() as group:
            for request in requests:
                await asyncio.sleep(max(0.0, due - time.perf_counter()))
                group.create_task(run_one(request, due))
                due += rng.expovariate(rate_per_s) if poisson else 1.0 / rate_per_s
        result.finished = time.perf_counter()
    return result
