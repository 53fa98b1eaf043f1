"""`quire logs`: the last lines of a suite's log files, and the next ones as they come."""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from pathlib import Path
from typing import IO

from quire_launcher.layout import StateFolder
from quire_launcher.output import Output

POLL_S = 0.2


def show_logs(port: int, *, names: list[str], lines: int, follow: bool) -> int:
    """Print the last `lines` of each log of the suite on `port` (of `names` alone, if any); the exit status.

    The logs go to standard output, for a pager or grep; what is wrong goes to standard error.
    """
    output, problems = Output(show_services=True, stream=sys.stdout), Output(show_services=False)
    folder = StateFolder.find(port)
    files = sorted(folder.logs.glob("*.log")) if folder else []
    if names:
        unknown = set(names) - {file.stem for file in files}
        if unknown:
            problems.failure(f"no log of {', '.join(sorted(unknown))} on port {port}", [])
            return 1
        files = [file for file in files if file.stem in names]
    if not files:
        problems.failure(f"there are no logs of a suite on port {port}", [])
        return 1
    opened = {file: _show_tail(file, lines, output) for file in files}
    while follow:
        time.sleep(POLL_S)
        for file, handle in opened.items():
            for line in handle:
                output.service_line(file.stem, line.rstrip())
            if _was_replaced(file, handle):
                handle.close()
                opened[file] = file.open(errors="replace")
    for handle in opened.values():
        handle.close()
    return 0


def _show_tail(file: Path, lines: int, output: Output) -> IO[str]:
    handle = file.open(errors="replace")
    for line in deque(handle, maxlen=lines):
        output.service_line(file.stem, line.rstrip())
    return handle


def _was_replaced(file: Path, handle: IO[str]) -> bool:
    """Whether the log was moved aside or begun anew since it was opened."""
    try:
        return file.stat().st_ino != os.fstat(handle.fileno()).st_ino
    except FileNotFoundError:
        return False
