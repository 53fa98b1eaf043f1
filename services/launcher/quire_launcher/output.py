"""What the launcher prints: lines with the name of who said them, progress bars on a terminal, reasons of failures.

One job; it reads no state and starts nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

COLOURS = {"gateway": "36", "tokenizer": "35", "scheduler": "33", "worker": "32", "envoy": "34", "quire": "1"}
WIDTH = max(map(len, COLOURS))


class Output:
    """Standard error unless told otherwise, one line at a time; a progress bar stays at the bottom of a terminal."""

    def __init__(
        self, *, show_services: bool, bars: bool | None = None, stream: TextIO | None = None
    ) -> None:
        """`show_services`: whether the services' own lines are printed, or only what the launcher says."""
        self._stream = stream or sys.stderr
        self._colour = self._stream.isatty()
        self._show_services = show_services
        self._bars = self._colour if bars is None else bars
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        self._last_phase = ""

    def service_line(self, name: str, line: str) -> None:
        """A line that a process wrote."""
        if self._show_services:
            self._print(self._prefix(name) + line)

    def say(self, line: str) -> None:
        """A line of the launcher itself."""
        self._print(self._prefix("quire") + line)

    def event(self, name: str, text: str) -> None:
        """Something that happened to a process."""
        self.say(f"{name} {text}")

    def failure(self, reason: str, tail: Sequence[str]) -> None:
        """Why the suite did not start, with the last lines of whoever is to blame."""
        self.close()
        self._print(self._prefix("quire") + f"failed: {reason}")
        for line in tail:
            self._print(f"    {line}")

    def progress(self, phase: str, done: int, total: int) -> None:
        """How far the model's load is: a bar on a terminal, one line a phase elsewhere."""
        if not self._bars:
            if phase != self._last_phase:
                self.say(f"worker: {phase}")
            self._last_phase = phase
            return
        if self._progress is None:
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

            columns = (
                TextColumn("{task.description:>24}"),
                BarColumn(40),
                TaskProgressColumn(),
                TimeElapsedColumn(),
            )
            self._progress = Progress(*columns, console=Console(file=self._stream), transient=True)
            self._progress.start()
            self._task = self._progress.add_task(phase, total=None)
        assert self._task is not None
        self._progress.update(self._task, description=phase, completed=done, total=total or None)

    def close(self) -> None:
        """Take the bar away."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

    def _prefix(self, name: str) -> str:
        padded = f"{name:>{WIDTH}} | "
        return f"\x1b[{COLOURS.get(name, '0')}m{padded}\x1b[0m" if self._colour else padded

    def _print(self, line: str) -> None:
        if self._progress is not None:
            self._progress.console.print(line, markup=False, highlight=False)
        else:
            print(line, file=self._stream, flush=True)

    def __enter__(self) -> Output:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
