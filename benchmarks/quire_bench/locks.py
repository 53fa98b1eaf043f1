"""One measurement at a time on a machine that is shared: an advisory lock on a file that all who measure agree on."""

from __future__ import annotations

import asyncio
import fcntl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

POLL_S = 0.02


@asynccontextmanager
async def exclusive(path: Path | None) -> AsyncIterator[None]:
    """Hold the file's lock; waits for it, and can be cancelled meanwhile. Nothing is done without a path."""
    if path is None:
        yield
        return
    with path.open("a") as file:  # closing the file gives the lock back
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                await asyncio.sleep(POLL_S)
        yield
