"""A scripted OpenAI-like server on loopback, to test the load generator against: it answers byte by byte as told."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

Respond = Callable[[str, dict[str, Any], asyncio.StreamWriter], Awaitable[None]]


async def read_request(reader: asyncio.StreamReader) -> tuple[str, dict[str, Any]] | None:
    """Path and JSON body of the next request; None at the end of the connection."""
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("ascii")
    except asyncio.IncompleteReadError:
        return None
    length = 0
    for line in head.split("\r\n"):
        name, _, value = line.partition(":")
        if name.lower() == "content-length":
            length = int(value)
    body = await reader.readexactly(length)
    return head.split(" ")[1], json.loads(body) if body else {}


@asynccontextmanager
async def fake_server(respond: Respond) -> AsyncIterator[str]:
    """Serve `respond` on a free loopback port; gives the base URL."""
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            while (request := await read_request(reader)) is not None:
                await respond(*request, writer)
                await writer.drain()
        except (ConnectionError, asyncio.CancelledError):
            return
        finally:
            tasks.discard(task)
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.wait_closed()


def chunked(data: bytes) -> bytes:
    """One chunk of the chunked transfer coding."""
    return b"%x\r\n%s\r\n" % (len(data), data)


SSE_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def event(value: Any) -> bytes:
    """One server-sent event of a JSON value."""
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def text_chunk(text: str, finish_reason: str | None = None) -> dict[str, Any]:
    """A chunk of a streamed completion."""
    return {"choices": [{"index": 0, "text": text, "finish_reason": finish_reason}]}


def json_response(status: int, value: Any) -> bytes:
    """A whole JSON response."""
    body = json.dumps(value).encode()
    return b"HTTP/1.1 %d X\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (
        status,
        len(body),
        body,
    )
