"""Starts a server as a child process, waits until it answers, measures what it uses, and stops all of it.

The server is a command that stays in the foreground; its descendants are its services. It knows no command itself.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from quire_bench.models import wait_ready
from quire_bench.procstat import CpuMeter, ProcessInfo, proportional_set_bytes

STOP_TIMEOUT_S = 30.0
LOG_LINES_SHOWN = 15


class ServerFailed(RuntimeError):
    """The server ended or stayed silent; the message ends with the last lines that it printed."""


@dataclass(frozen=True, slots=True)
class Server:
    """A running server."""

    name: str
    url: str
    pid: int | None  # None: somebody else's process, whose costs are not known
    started: float  # time.perf_counter() when its process was made

    def memory_bytes(self) -> int:
        """Proportional set size of all its processes."""
        return proportional_set_bytes(self._roots())

    def cpu_meter(self, label: Callable[[ProcessInfo], str] = lambda info: "all") -> CpuMeter:
        """A meter of its processes' time."""
        return CpuMeter(self._roots(), label)

    def _roots(self) -> list[int]:
        return [] if self.pid is None else [self.pid]


def cancel_on_sigterm() -> None:
    """From now on SIGTERM cancels the present task, so that the servers it started are stopped in order."""
    task = asyncio.current_task()
    assert task is not None, "called outside a task"
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)


@asynccontextmanager
async def running(
    name: str,
    command: Sequence[str],
    url: str,
    log: Path,
    *,
    ready_timeout_s: float,
    environment: Mapping[str, str] | None = None,
) -> AsyncIterator[Server]:
    """Run `command`, output to `log`, around the block, which begins when `url`/models answers. Raises ServerFailed."""
    started = time.perf_counter()
    with log.open("wb") as output:
        # A session of its own: a Ctrl-C ends us first, and we end it in order.
        child = await asyncio.create_subprocess_exec(
            *command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(environment or {})},
            start_new_session=True,
        )
    try:
        await _until_ready(name, child, url, log, ready_timeout_s)
        yield Server(name, url, child.pid, started)
    finally:
        await _stop(child)


async def _until_ready(name: str, child: Process, url: str, log: Path, timeout_s: float) -> None:
    deadline = time.perf_counter() + timeout_s
    while True:
        if child.returncode is not None:
            raise ServerFailed(f"{name} ended with status {child.returncode}:\n{_tail(log)}")
        try:
            await wait_ready(url, min(1.0, timeout_s))
            return
        except TimeoutError as error:
            if time.perf_counter() > deadline:
                raise ServerFailed(f"{name}: {error} (in all {timeout_s:g} s)\n{_tail(log)}") from error


async def _stop(child: Process) -> None:
    """End the server in order; what does not end in time is killed with its whole session."""
    if child.returncode is not None:
        return
    child.send_signal(signal.SIGTERM)
    try:
        async with asyncio.timeout(STOP_TIMEOUT_S):
            await child.wait()
    except TimeoutError:
        os.killpg(child.pid, signal.SIGKILL)
        await child.wait()


def _tail(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()
    return "\n".join(lines[-LOG_LINES_SHOWN:])


def program_name(info: ProcessInfo) -> str:
    """`gateway` for quire-gateway, `envoy` for Envoy; other processes of the tree are `other`."""
    for word in info.command[:3]:
        base = word.rsplit("/", 1)[-1]
        if base.startswith("quire-"):
            return base.removeprefix("quire-").removesuffix("-sim")
        if base == "envoy":
            return base
        if base == "quire":
            return "launcher"
    return "other"
