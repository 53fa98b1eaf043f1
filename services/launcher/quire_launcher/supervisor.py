"""Keeps processes running: starts them together, waits until each is ready, restarts what ends, stops in order.

One job; it knows neither services nor ports. What to run and how to tell that it is ready are given to it.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from quire_launcher.child import Child, Command, describe_exit

#: A process that ran this long before it ended is restarted at once, as after its first end.
STEADY_S = 30.0
FIRST_BACKOFF_S = 0.5
MAX_BACKOFF_S = 10.0

Show = Callable[[str, str], None]


class State(Enum):
    """What a supervised process is doing."""

    STARTING = "starting"
    READY = "ready"
    RESTARTING = "restarting"
    STOPPED = "stopped"


@dataclass(frozen=True)
class Spec:
    """A process to supervise."""

    command: Command
    #: Returns when the process can do its work; awaited anew after each start, and cancelled when the process ends.
    until_ready: Callable[[], Awaitable[None]]
    #: How long it gets to end after SIGTERM.
    stop_timeout_s: float = 10.0
    #: Run before SIGTERM, for a process that must be asked in another way first.
    before_stop: Callable[[], Awaitable[None]] | None = None


class CannotGetReady(Exception):
    """Raised by `until_ready` when the process runs but says that it will never be ready; the message says why."""


class StartFailed(Exception):
    """A process ended before it was ready; `tail` has its last lines."""

    def __init__(self, name: str, reason: str, tail: Sequence[str]) -> None:
        self.name, self.reason, self.tail = name, reason, list(tail)
        super().__init__(f"{name} {reason}")


class Supervisor:
    """Supervises processes: `launch` each, `until_ready`, then `run` (until cancelled), then `stop`."""

    def __init__(
        self, *, logs: Path, show: Show, notify: Callable[[str, str], None], changed: Callable[[], None]
    ) -> None:
        """`show(name, line)` for each line of output, which also goes to `logs`/name.log; `notify(name, text)` for what
        happens to a process; `changed()` when a process id or a state is another."""
        self.specs: dict[str, Spec] = {}
        self.states: dict[str, State] = {}
        self.restarts: dict[str, int] = {}
        self.children: dict[str, Child] = {}
        self._logs, self._show, self._notify, self._changed = logs, show, notify, changed
        self._stopping = False

    async def launch(self, spec: Spec) -> None:
        """Start one process more, without waiting for it."""
        name = spec.command.name
        self.specs[name], self.states[name], self.restarts[name] = spec, State.STARTING, 0
        await self._start(name)

    async def until_ready(self, timeout_s: float) -> None:
        """Return when all launched processes are ready.

        Raises StartFailed for the first that ends before it is ready, or that is not ready in time.
        """
        waiting = {asyncio.create_task(self._first_ready(name, timeout_s)) for name in self.specs}
        try:
            while waiting:
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
        finally:
            for task in waiting:
                task.cancel()

    async def run(self) -> None:
        """Restart whatever ends, for ever."""
        async with asyncio.TaskGroup() as group:
            for name in self.specs:
                group.create_task(self._keep(name))

    async def stop(self, order: Sequence[Sequence[str]], *, scale: float = 1.0) -> None:
        """End the processes, group after group, each politely first; `scale` 0 kills at once."""
        self._stopping = True
        for names in order:
            await asyncio.gather(*(self._end(name, scale) for name in names if name in self.children))

    def kill(self) -> None:
        """Kill everything at once."""
        self._stopping = True
        for child in self.children.values():
            child.kill_group()

    async def _start(self, name: str) -> Child:
        spec = self.specs[name]
        child = Child(spec.command, self._logs / f"{name}.log", self._show)
        await child.start()
        self.children[name] = child
        self._changed()
        return child

    async def _first_ready(self, name: str, timeout_s: float) -> None:
        child = self.children[name]
        ready = asyncio.ensure_future(self.specs[name].until_ready())
        ended = asyncio.create_task(child.wait())
        try:
            await asyncio.wait({ready, ended}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            if ended.done():
                raise StartFailed(name, f"{describe_exit(ended.result())} before it was ready", child.tail)
            if not ready.done():
                raise StartFailed(name, f"was not ready within {timeout_s:g} s", child.tail)
            ready.result()
        except CannotGetReady as error:
            raise StartFailed(name, f"cannot get ready: {error}", child.tail) from error
        finally:
            ready.cancel()
            ended.cancel()
        self._set(name, State.READY)

    async def _keep(self, name: str) -> None:
        """Wait for the process to end and start it again, for ever."""
        # The first end is taken for an accident, and requests wait for the process; only one that keeps ending waits.
        pause_s = 0.0
        while True:
            child = self.children[name]
            status = await child.wait()
            child.kill_group()
            if self._stopping:
                return
            self.restarts[name] += 1
            self._set(name, State.RESTARTING)
            if time.monotonic() - child.started_at >= STEADY_S:
                pause_s = 0.0
            when = f" in {pause_s:g} s" if pause_s else ""
            self._notify(name, f"{describe_exit(status)}, restarting{when}")
            await asyncio.sleep(pause_s)
            pause_s = min(max(2 * pause_s, FIRST_BACKOFF_S), MAX_BACKOFF_S)
            await self._start(name)
            await self._until_ready_or_ended(name)

    async def _until_ready_or_ended(self, name: str) -> None:
        ready = asyncio.ensure_future(self.specs[name].until_ready())
        ended = asyncio.create_task(self.children[name].wait())
        try:
            await asyncio.wait({ready, ended}, return_when=asyncio.FIRST_COMPLETED)
            if ended.done():
                return
            if (error := ready.exception()) is not None:
                self._notify(name, f"runs, but is not ready: {error}")
            else:
                self._set(name, State.READY)
                self._notify(name, "ready again")
        finally:
            ready.cancel()
            ended.cancel()

    async def _end(self, name: str, scale: float) -> None:
        spec, child = self.specs[name], self.children[name]
        try:
            async with asyncio.timeout(spec.stop_timeout_s * scale):
                if spec.before_stop is not None:
                    await spec.before_stop()
                child.signal(signal.SIGTERM)
                await child.wait()
        except TimeoutError:
            if scale:
                self._notify(name, f"did not end within {spec.stop_timeout_s:g} s, killed")
        child.kill_group()
        await child.wait()
        self._set(name, State.STOPPED)

    def _set(self, name: str, state: State) -> None:
        self.states[name] = state
        self._changed()
