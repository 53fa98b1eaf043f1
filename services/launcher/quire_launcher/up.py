"""`quire up`: one suite, from nothing to ready and back.

One job: the order of things. The processes are the plan's, keeping them running is the supervisor's.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import time
from pathlib import Path
from typing import Any

from quire_launcher import plan
from quire_launcher.layout import Ports, StateFolder
from quire_launcher.loading import follow_load
from quire_launcher.model import resolve_model
from quire_launcher.options import UpOptions
from quire_launcher.output import Output
from quire_launcher.supervisor import StartFailed, Supervisor


class CannotStart(Exception):
    """The suite cannot start, for a reason found before anything was started."""


class ReadyPipe:
    """Tells a waiting `quire up --detach` how the start went: JSON lines into a pipe; nothing without one."""

    def __init__(self, descriptor: int | None) -> None:
        self._file = os.fdopen(descriptor, "w", buffering=1) if descriptor is not None else None

    def send(self, event: str, **fields: Any) -> None:
        """One event; a reader that has gone is no concern of the suite."""
        if self._file is None:
            return
        try:
            self._file.write(json.dumps({"event": event, **fields}) + "\n")
        except BrokenPipeError:
            self._file = None

    def close(self) -> None:
        """Nothing more will be said."""
        if self._file is not None:
            self._file.close()
            self._file = None


class Suite:
    """One run of a suite in this process."""

    def __init__(self, options: UpOptions, folder: StateFolder, output: Output, pipe: ReadyPipe) -> None:
        self.options, self.folder, self.output, self.pipe = options, folder, output, pipe
        self.started_at = time.time()
        self.ready = False
        self._signals = 0
        self._stop = asyncio.Event()
        self._supervisor: Supervisor | None = None

    async def run(self) -> int:
        """Start, stay up until told to stop, stop. Returns the exit status."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.add_signal_handler(number, self._on_signal)
        supervisor = self._supervisor = Supervisor(
            logs=self.folder.logs,
            show=self.output.service_line,
            notify=self.output.event,
            changed=self._write_state,
        )
        watch = asyncio.create_task(follow_load(self.options.ports.address("worker"), self._report_load))
        try:
            status = await self._start_and_stay(supervisor)
        finally:
            watch.cancel()
            self.output.close()
            await supervisor.stop(plan.STOP_ORDER, scale=1.0 if self.ready and self._signals < 2 else 0.0)
            self.folder.clear()
            self.folder.unlock()
        if status == 0:
            self.output.say("stopped")
        return status

    async def _start(self, supervisor: Supervisor) -> None:
        """Start everything at once; return when all of it is ready."""
        for spec in plan.services(self.options, self.folder):
            await supervisor.launch(spec)
        await supervisor.launch(plan.edge(self.options, self.folder))
        await supervisor.until_ready(self.options.start_timeout_s)

    async def _start_and_stay(self, supervisor: Supervisor) -> int:
        start = asyncio.create_task(self._start(supervisor))
        stop = asyncio.create_task(self._stop.wait())
        await asyncio.wait({start, stop}, return_when=asyncio.FIRST_COMPLETED)
        if not start.done():
            start.cancel()
            self.pipe.send("failed", reason="stopped while starting", tail=[])
            return 130
        try:
            start.result()
        except StartFailed as failure:
            reason, tail = f"{failure}", failure.tail
            self.output.failure(reason, tail)
            self.pipe.send("failed", reason=reason, tail=tail)
            return 1
        self._say_ready()
        keep = asyncio.create_task(supervisor.run())
        await asyncio.wait({keep, stop}, return_when=asyncio.FIRST_COMPLETED)
        if keep.done():
            keep.result()  # a bug of ours: let it show
        keep.cancel()
        self.output.say("stopping")
        return 0

    def _say_ready(self) -> None:
        self.ready = True
        self._write_state()
        self.output.close()
        seconds = time.time() - self.started_at
        self.output.say(
            f"ready in {seconds:.1f} s: http://{_shown_host(self.options.host)}:{self.options.port}/v1"
        )
        self.pipe.send("ready", seconds=seconds)
        self.pipe.close()

    def _report_load(self, phase: str, done: int, total: int) -> None:
        if not self.ready:
            self.output.progress(phase, done, total)
            self.pipe.send("progress", phase=phase, done=done, total=total)

    def _on_signal(self) -> None:
        self._signals += 1
        self._stop.set()
        if self._signals > 1 and self._supervisor is not None:
            self.output.say("second signal, ending everything at once")
            self._supervisor.kill()

    def _write_state(self) -> None:
        supervisor = self._supervisor
        processes = {
            name: {
                "pid": child.pid,
                "state": supervisor.states[name].value,
                "restarts": supervisor.restarts[name],
            }
            for name, child in (supervisor.children if supervisor else {}).items()
            if supervisor
        }
        self.folder.write(
            {
                "pid": os.getpid(),
                "port": self.options.port,
                "host": self.options.host,
                "ready": self.ready,
                "started_at": self.started_at,
                "processes": processes,
            }
        )


def _shown_host(host: str) -> str:
    return "127.0.0.1" if host in ("0.0.0.0", "::") else host


def claim(port: int, *, with_embedding: bool = False) -> StateFolder:
    """The state folder of a suite that may start on `port` now, its lock taken.

    Raises CannotStart when one runs already, or when a port is taken by something else: it names which.
    """
    running = StateFolder.find(port)
    if running is not None and running.is_running():
        pid = running.read().get("pid", "unknown")
        raise CannotStart(
            f"a suite runs on port {port} already (process {pid}); stop it with: quire down --port {port}"
        )
    folder = StateFolder.create(port)
    if not folder.try_lock():
        raise CannotStart(f"a suite is just starting on port {port}")
    wanted = Ports(port).all(with_embedding=with_embedding)
    taken = [f"{number} ({name})" for name, number in wanted if not _is_free(number)]
    if taken:
        folder.unlock()
        raise CannotStart(f"in use by another program: port {', '.join(taken)}")
    folder.write({"pid": os.getpid(), "port": port, "ready": False})
    for old in folder.logs.glob("*.log*"):
        if old.name != "launcher.log":
            old.unlink()
    return folder


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def run_suite(options: UpOptions, *, show_services: bool, ready_descriptor: int | None = None) -> int:
    """Run a suite in this process until it is told to stop; the exit status."""
    pipe = ReadyPipe(ready_descriptor)
    with Output(show_services=show_services) as output:
        try:
            folder = claim(options.port, with_embedding=options.embedding_model is not None)
            resolve_model(options.model, options.served_model_name)
            if options.embedding_model is not None:
                resolve_model(options.embedding_model)
            return asyncio.run(_run(options, folder, output, pipe))
        except (CannotStart, ValueError, OSError) as error:
            output.failure(str(error), [])
            pipe.send("failed", reason=str(error), tail=[])
            return 1


async def _run(options: UpOptions, folder: StateFolder, output: Output, pipe: ReadyPipe) -> int:
    return await Suite(options, folder, output, pipe).run()


def log_of_launcher(folder: StateFolder) -> Path:
    """Where a detached launcher writes."""
    return folder.logs / "launcher.log"
