"""One measurement at a time on a machine that is shared: an advisory lock on a file that all who measure agree on."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def exclusive(path: Path | None) -> Iterator[None]:
    """Hold the file's lock; waits for it. Nothing is done without a path."""
    if path is None:
        yield
        return
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield  # closing the file gives the lock back
