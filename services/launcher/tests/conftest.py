"""Small programs that stand in for services, and a state folder of the test's own."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from quire_launcher.child import Command
from quire_launcher.supervisor import Spec, Supervisor

#: Writes `ready`, then waits; ends on SIGTERM.
STEADY = "import pathlib, time; pathlib.Path('ready').touch(); print('steady', flush=True); time.sleep(600)"


@pytest.fixture(autouse=True)
def state_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No test touches the user's own suites."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.delenv("HOME", raising=False)
    return tmp_path / "run" / "quire"


@pytest.fixture
def make_spec(tmp_path: Path) -> Callable[..., Spec]:
    """`make_spec(name, code)`: a Python program as a Spec, ready when it has made the file `ready`."""

    def make(name: str, code: str = STEADY, **options) -> Spec:
        folder = tmp_path / name
        folder.mkdir()
        command = Command(name, [sys.executable, "-c", f"import os; os.chdir({str(folder)!r})\n{code}"])

        async def until_ready() -> None:
            while not (folder / "ready").exists():
                await asyncio.sleep(0.01)

        return Spec(command, until_ready, **options)

    return make


class Events:
    """What a supervisor says."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str]] = []
        self.notes: list[tuple[str, str]] = []

    def show(self, name: str, line: str) -> None:
        self.lines.append((name, line))

    def notify(self, name: str, text: str) -> None:
        self.notes.append((name, text))


@pytest.fixture
def events() -> Events:
    """Collects a supervisor's words."""
    return Events()


@pytest.fixture
async def supervisor(tmp_path: Path, events: Events):
    """A supervisor that leaves nothing behind."""
    logs = tmp_path / "logs"
    logs.mkdir()
    made = Supervisor(logs=logs, show=events.show, notify=events.notify, changed=lambda: None)
    yield made
    await made.stop([list(made.specs)], scale=0.0)
