"""One supervised process: started, its output kept, ended with all it started.

One job; when to start again is the supervisor's to decide.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

GUARD = Path(__file__).with_name("guard.py")
TAIL_LINES = 30
MAX_LINE_BYTES = 1 << 20
MAX_LOG_BYTES = 64 << 20


@dataclass(frozen=True)
class Command:
    """What to run, under which name."""

    name: str
    arguments: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)


class Child:
    """One run of a Command. `wait` it to its end; `tail` has its last lines of output."""

    def __init__(self, command: Command, log: Path, show: Callable[[str, str], None]) -> None:
        """Output goes to the file `log`, and line by line to `show(name, line)`."""
        self.command = command
        self.tail: deque[str] = deque(maxlen=TAIL_LINES)
        self.started_at = 0.0
        self._log = log
        self._show = show
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        """The process id; None before start."""
        return self._process.pid if self._process else None

    async def start(self) -> None:
        """Start the process, in a session of its own so that a terminal's Ctrl-C reaches the launcher alone."""
        arguments = [sys.executable, "-I", "-S", str(GUARD), str(os.getpid()), *self.command.arguments]
        # A pipe of our own: asyncio's would make `wait` last until everyone who inherited it has ended.
        reader, writer = os.pipe()
        try:
            self._process = await asyncio.create_subprocess_exec(
                *arguments,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=writer,
                stderr=writer,
                env={**os.environ, **self.command.environment},
                start_new_session=True,
            )
        except BaseException:
            os.close(reader)
            raise
        finally:
            os.close(writer)
        self.started_at = time.monotonic()
        self._reader = asyncio.create_task(self._read(reader), name=f"output of {self.command.name}")

    async def wait(self) -> int:
        """The exit status, once the process has ended and its output is read; -N for signal N."""
        assert self._process is not None
        assert self._reader is not None
        status = await self._process.wait()
        # What it started may hold the pipe open: the output that matters is read by then.
        await asyncio.wait([self._reader], timeout=1.0)
        self._reader.cancel()
        return status

    def signal(self, number: int) -> None:
        """Send a signal to the process; nothing happens when it has ended."""
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(number)

    def kill_group(self) -> None:
        """Kill the process and whatever it started."""
        if self._process is None:
            return
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return

    async def _read(self, descriptor: int) -> None:
        stream = asyncio.StreamReader(limit=MAX_LINE_BYTES)
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(stream), os.fdopen(descriptor, "rb", buffering=0)
        )
        try:
            with LogFile(self._log) as log:
                while True:
                    try:
                        line = await stream.readline()
                    except ValueError:  # longer than MAX_LINE_BYTES: dropped, the next one is read again
                        continue
                    if not line:
                        return
                    text = line.decode(errors="replace").rstrip()
                    self.tail.append(text)
                    self._show(self.command.name, text)
                    log.write(line)
        finally:
            transport.close()


class LogFile:
    """A file that is moved aside (`.1`, replacing the last one) when it is full, so that a disk never fills up."""

    def __init__(self, path: Path, max_bytes: int = MAX_LOG_BYTES) -> None:
        self._path, self._max_bytes = path, max_bytes
        self._file = path.open("ab", buffering=0)

    def write(self, line: bytes) -> None:
        """Append one line."""
        if self._file.tell() + len(line) > self._max_bytes:
            self._file.close()
            self._path.replace(self._path.with_name(self._path.name + ".1"))
            self._file = self._path.open("ab", buffering=0)
        self._file.write(line)

    def __enter__(self) -> LogFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


def describe_exit(status: int) -> str:
    """An exit status in words."""
    if status >= 0:
        return f"exited with status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    return f"was ended by {name}"
