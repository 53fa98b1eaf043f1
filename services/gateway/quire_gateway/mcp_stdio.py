"""A program as an MCP server: JSON-RPC messages over its standard input and output.

One job: start it, carry messages, end it. The library's own starts programs by the event loop, which forks: in a
process that uses gRPC the forked child may crash before it becomes the program. Here nothing of ours runs in the child.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

from quire_servicekit.logging import get_logger

log = get_logger("mcp")

#: A message is one line.
MAX_LINE_BYTES = 16 << 20
#: How long a program may take to end after its input has, and after it was told to.
_GRACE_S = 2.0
_POLL_S = 0.01


@asynccontextmanager
async def stdio_transport(command: Sequence[str], env: Mapping[str, str]) -> AsyncIterator[tuple[Any, Any]]:
    """The streams that the library's client wants. env: added to the few variables that every program gets."""
    import anyio
    from mcp.client.stdio import get_default_environment

    # Without a function to run in the child it is started by vfork, which runs no fork handlers.
    process = subprocess.Popen(  # noqa: ASYNC220 - returns as soon as the program is loaded
        list(command),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**get_default_environment(), **env},
        start_new_session=True,
        bufsize=0,
    )
    reader = asyncio.StreamReader(limit=MAX_LINE_BYTES)
    pipe, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), process.stdout
    )
    incoming_in, incoming = anyio.create_memory_object_stream[Any](0)
    outgoing, outgoing_out = anyio.create_memory_object_stream[Any](0)
    tasks = [
        asyncio.create_task(_read(reader, incoming_in)),
        asyncio.create_task(_write(process, outgoing_out, incoming_in)),
    ]
    try:
        yield incoming, outgoing
    finally:
        for stream in (incoming, outgoing):
            stream.close()
        await _end(process)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        incoming_in.close()
        outgoing_out.close()
        pipe.close()


async def _read(reader: asyncio.StreamReader, to: Any) -> None:
    """Lines of the program, as messages."""
    import anyio
    from mcp.shared.message import SessionMessage
    from mcp_types import jsonrpc_message_adapter

    async with to:
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            while line := await _line_of(reader):
                try:
                    message = SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
                except ValueError as error:
                    # What is no message is the session's to judge.
                    await to.send(error)
                else:
                    await to.send(message)


async def _line_of(reader: asyncio.StreamReader) -> bytes:
    """The next line; empty at the end, or where a line is too long to be read."""
    try:
        return await reader.readline()
    except ValueError:
        log.warning("mcp server wrote too long a line", max_bytes=MAX_LINE_BYTES)
        return b""


async def _write(process: subprocess.Popen[bytes], messages: Any, incoming: Any) -> None:
    """Messages to the program, a line each."""
    assert process.stdin is not None
    async with messages:
        async for message in messages:
            line = message.message.model_dump_json(by_alias=True, exclude_unset=True) + "\n"
            try:
                await asyncio.to_thread(_write_all, process.stdin, line.encode())
            except (OSError, ValueError):
                # The session sees the end instead of waiting for an answer.
                await incoming.aclose()
                return


def _write_all(pipe: Any, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[pipe.write(view) :]


async def _end(process: subprocess.Popen[bytes]) -> None:
    """End the program and what it started: by the end of its input, then by signals."""
    assert process.stdin is not None
    with suppress(OSError):
        process.stdin.close()
    for number in (signal.SIGTERM, signal.SIGKILL, None):
        for _ in range(round(_GRACE_S / _POLL_S)):
            if process.poll() is not None:
                return
            await asyncio.sleep(_POLL_S)
        if number is not None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, number)
