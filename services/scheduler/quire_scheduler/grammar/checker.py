"""Tries constraints in processes of their own, and ends those that take too long.

One job: keep a compiler that runs away from being ours. Processes start when they are first needed, and stay.
"""

from __future__ import annotations

import asyncio
import pickle
import subprocess
import sys
from contextlib import suppress

from quire_scheduler.errors import InvalidRequest
from quire_scheduler.grammar.checker_frames import HEADER, Checked, Setup, frame
from quire_scheduler.grammar.constraint import Constraint
from quire_scheduler.grammar.language import broken
from quire_servicekit.logging import get_logger

log = get_logger("grammar")

START_TIMEOUT_S = 60.0


class Checker:
    """One process, which tries one constraint at a time."""

    def __init__(
        self, process: subprocess.Popen[bytes], answers: asyncio.StreamReader, pipe: asyncio.BaseTransport
    ) -> None:
        """answers: what the process writes. pipe: where that comes from."""
        self._process, self._answers, self._pipe = process, answers, pipe

    @classmethod
    async def start(cls, setup: bytes) -> Checker:
        """Returns when it can take constraints. setup: a frame. Raises TimeoutError, or EOFError if it ends."""
        # Not by the event loop, which forks: in a process that uses gRPC the forked child may crash before it becomes
        # the program. Without a function to run in the child it is started by vfork, which runs no fork handlers.
        process = await asyncio.to_thread(
            subprocess.Popen,
            [sys.executable, "-m", "quire_scheduler.grammar.checker_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
        )
        answers = asyncio.StreamReader()
        pipe, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(answers), process.stdout
        )
        checker = cls(process, answers, pipe)
        try:
            await checker._ask(setup, START_TIMEOUT_S)
        except BaseException:
            await checker.end()
            raise
        return checker

    async def check(self, constraint: Constraint, timeout_s: float) -> Checked:
        """What became of a constraint. Raises TimeoutError, or EOFError if the process ended over it: it is then of no
        further use, as after any other exception."""
        found = await self._ask(frame(constraint), timeout_s)
        assert isinstance(found, Checked)
        return found

    async def end(self) -> None:
        """Kill it."""
        assert self._process.stdin is not None
        self._process.kill()
        await asyncio.to_thread(self._process.wait)
        self._pipe.close()
        with suppress(OSError):
            self._process.stdin.close()

    async def _ask(self, question: bytes, timeout_s: float) -> object:
        async with asyncio.timeout(timeout_s):
            try:
                await asyncio.to_thread(self._write, question)
                header = await self._answers.readexactly(HEADER.size)
                data = await self._answers.readexactly(HEADER.unpack(header)[0])
            except (asyncio.IncompleteReadError, OSError, ValueError) as error:
                raise EOFError("the process has ended") from error
        return pickle.loads(data)

    def _write(self, data: bytes) -> None:
        """On a thread: a process that reads nothing holds it until it is killed."""
        assert self._process.stdin is not None
        view = memoryview(data)
        while view:
            view = view[self._process.stdin.write(view) :]


class CheckerPool:
    """As many processes as there are constraints to be tried at once, up to a number."""

    def __init__(self, setup: Setup, num_processes: int, timeout_s: float) -> None:
        """timeout_s: of one constraint, once a process has begun with it."""
        self._setup = frame(setup)
        self._timeout_s = timeout_s
        self._turns = asyncio.Semaphore(num_processes)
        self._idle: list[Checker] = []
        self._is_closed = False

    async def check(self, constraint: Constraint) -> str:
        """The grammar of a constraint that compiles. Raises InvalidRequest for any other."""
        async with self._turns:
            checker = self._idle.pop() if self._idle else await Checker.start(self._setup)
            try:
                checked = await checker.check(constraint, self._timeout_s)
            except TimeoutError as error:
                log.warning("constraint took too long", kind=constraint.kind, timeout_s=self._timeout_s)
                await checker.end()
                limit = f"compiled within {self._timeout_s:g} s"
                raise InvalidRequest(constraint.field, limit, "one that takes longer") from error
            except EOFError as error:
                log.warning("constraint ended its process", kind=constraint.kind)
                await checker.end()
                raise broken(constraint.field, "is beyond what the compiler can take") from error
            except BaseException:
                await checker.end()
                raise
            if self._is_closed:
                await checker.end()
            else:
                self._idle.append(checker)
        if not checked.grammar:
            raise broken(constraint.field, checked.message.removeprefix(f"{constraint.field} "))
        return checked.grammar

    async def close(self) -> None:
        """End all processes."""
        self._is_closed = True
        idle, self._idle = self._idle, []
        for checker in idle:
            await checker.end()
