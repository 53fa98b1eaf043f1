"""What the gateway's two long-lived streams share: a writer that cannot die unnoticed, and a reader that notices.

One job: tie the two directions of a call together. Knows no contract.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import grpc

from quire_servicekit.logging import get_logger

log = get_logger("stream")


class BrokenStreamError(Exception):
    """The stream is of no use any more, for a reason that is not a status."""


def start_writer(call: Any, write: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
    """Run `write` beside the reader. If it fails by a bug the call is cancelled, and `read` raises."""

    async def guarded() -> None:
        try:
            await write
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            # The call has ended; the reader gets the status.
            return
        except Exception:
            log.exception("stream writer failed", name=name)
            call.cancel()
            raise

    return asyncio.get_running_loop().create_task(guarded(), name=name)


async def read(call: Any) -> Any:
    """The next message. Raises AioRpcError, or BrokenStreamError when the stream has ended or was cancelled."""
    try:
        message = await call.read()
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise BrokenStreamError("the writer failed") from None
    if message is grpc.aio.EOF:
        raise BrokenStreamError("the other side ended the stream")
    return message


async def end(call: Any, writer: asyncio.Task[None] | None) -> None:
    """Cancel both directions."""
    call.cancel()
    if writer is not None:
        writer.cancel()
        await asyncio.gather(writer, return_exceptions=True)
