"""Supervision of real processes: start, failure, restart, order of the stop, no orphans."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from quire_launcher import supervisor as supervisor_module
from quire_launcher.child import Child, Command, LogFile, describe_exit
from quire_launcher.supervisor import CannotGetReady, Spec, StartFailed, State


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def until(condition) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.01)


async def test_all_start_at_once_and_are_ready(supervisor, make_spec):
    """Processes that wait for each other can only become ready when they are started together."""
    peer = (
        "import pathlib, time\npathlib.Path('up').touch()\n"
        "while not pathlib.Path('../{other}/up').exists(): time.sleep(0.01)\n"
        "pathlib.Path('ready').touch(); time.sleep(600)"
    )
    await supervisor.launch(make_spec("a", peer.format(other="b")))
    await supervisor.launch(make_spec("b", peer.format(other="a")))
    await supervisor.until_ready(20)
    assert set(supervisor.states.values()) == {State.READY}


async def test_output_is_shown_with_its_name_and_kept_in_a_file(supervisor, make_spec, events, tmp_path):
    """A line that a process prints reaches the terminal, the log file, and the tail."""
    await supervisor.launch(make_spec("a"))
    await supervisor.until_ready(20)
    await until(lambda: ("a", "steady") in events.lines)
    assert (tmp_path / "logs" / "a.log").read_text() == "steady\n"
    assert list(supervisor.children["a"].tail) == ["steady"]


async def test_a_process_that_ends_before_ready_fails_the_start_with_its_last_lines(supervisor, make_spec):
    """The reason and the log tail of whoever is to blame come with the failure."""
    await supervisor.launch(make_spec("steady"))
    await supervisor.launch(make_spec("bad", "print('model: no such file'); raise SystemExit(3)"))
    with pytest.raises(StartFailed) as failure:
        await supervisor.until_ready(20)
    assert str(failure.value) == "bad exited with status 3 before it was ready"
    assert failure.value.tail == ["model: no such file"]


async def test_a_process_that_never_gets_ready_fails_the_start(supervisor, make_spec):
    """A start that takes too long ends with the name of the process that was waited for."""
    await supervisor.launch(make_spec("slow", "import time; time.sleep(600)"))
    with pytest.raises(StartFailed, match=r"slow was not ready within 0\.2 s"):
        await supervisor.until_ready(0.2)


async def test_a_process_that_says_it_will_never_be_ready_fails_the_start(supervisor, make_spec):
    """A worker whose load failed keeps running to say why; the start fails at once with that reason."""

    async def until_ready() -> None:
        raise CannotGetReady("weights: the file is cut short")

    await supervisor.launch(Spec(make_spec("worker").command, until_ready))
    with pytest.raises(StartFailed, match="worker cannot get ready: weights: the file is cut short"):
        await supervisor.until_ready(20)


async def test_what_ends_is_restarted(supervisor, make_spec, events, monkeypatch):
    """A killed process comes back with a new id, is ready again, and the restart is counted."""
    monkeypatch.setattr(supervisor_module, "FIRST_BACKOFF_S", 0.02)
    await supervisor.launch(make_spec("a"))
    await supervisor.until_ready(20)
    first = supervisor.children["a"].pid
    keep = asyncio.create_task(supervisor.run())
    os.kill(first, signal.SIGKILL)
    await until(lambda: ("a", "ready again") in events.notes)
    keep.cancel()
    assert supervisor.restarts["a"] == 1
    assert supervisor.children["a"].pid != first
    assert any("was ended by SIGKILL, restarting" in text for _, text in events.notes)


async def test_restarts_slow_down(supervisor, make_spec, events, monkeypatch):
    """A process is restarted at once, and after longer and longer pauses when it ends again and again."""
    monkeypatch.setattr(supervisor_module, "FIRST_BACKOFF_S", 0.02)
    await supervisor.launch(make_spec("a", "import pathlib; pathlib.Path('ready').touch()"))
    keep = asyncio.create_task(supervisor.run())
    await until(lambda: supervisor.restarts["a"] >= 4)
    keep.cancel()
    pauses = [float(text.split(" in ")[1].split()[0]) for _, text in events.notes if "restarting in" in text]
    assert events.notes[0] == ("a", "exited with status 0, restarting")
    assert pauses[:3] == [0.02, 0.04, 0.08]


async def test_stop_goes_in_order_and_politely(supervisor, make_spec, tmp_path):
    """Each group ends before the next is asked, and a process may finish what it does."""
    polite = (
        "import pathlib, signal, time\n"
        "def end(*_):\n    open('../order', 'a').write('{name}\\n'); raise SystemExit\n"
        "signal.signal(signal.SIGTERM, end)\npathlib.Path('ready').touch(); time.sleep(600)"
    )
    asked = []

    async def before() -> None:
        asked.append("edge")

    await supervisor.launch(make_spec("edge", polite.format(name="edge"), before_stop=before))
    await supervisor.launch(make_spec("inner", polite.format(name="inner")))
    await supervisor.until_ready(20)
    await supervisor.stop([["edge"], ["inner"]])
    assert asked == ["edge"]
    assert (tmp_path / "order").read_text().split() == ["edge", "inner"]


async def test_a_process_that_ignores_sigterm_is_killed(supervisor, make_spec, events):
    """Stopping ends in bounded time, and says who had to be killed."""
    deaf = (
        "import pathlib, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "pathlib.Path('ready').touch(); time.sleep(600)"
    )
    await supervisor.launch(make_spec("deaf", deaf, stop_timeout_s=0.1))
    await supervisor.until_ready(20)
    await supervisor.stop([["deaf"]])
    assert not is_alive(supervisor.children["deaf"].pid)
    assert ("deaf", "did not end within 0.1 s, killed") in events.notes


async def test_grandchildren_end_with_their_service(supervisor, make_spec, tmp_path):
    """What a process started is not left behind when it is stopped."""
    code = (
        "import pathlib, subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "pathlib.Path('child').write_text(str(child.pid)); pathlib.Path('ready').touch(); time.sleep(600)"
    )
    await supervisor.launch(make_spec("parent", code))
    await supervisor.until_ready(20)
    grandchild = int((tmp_path / "parent" / "child").read_text())
    assert is_alive(grandchild)
    await supervisor.stop([["parent"]])
    await until(lambda: not is_alive(grandchild))


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's parent-death signal is Linux's")
def test_children_end_when_the_launcher_is_killed(tmp_path):
    """kill -9 of the launcher leaves no process of the suite behind."""
    code = f"""
import asyncio, sys
from pathlib import Path
from quire_launcher.child import Child, Command

async def main():
    code = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
    log = Path({str(tmp_path)!r}) / "a.log"
    child = Child(Command("a", [sys.executable, "-c", code]), log, lambda _, line: print(line, flush=True))
    await child.start()
    await child.wait()

asyncio.run(main())
"""
    launcher = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    pid = int(launcher.stdout.readline())
    assert is_alive(pid)
    launcher.kill()
    launcher.wait()
    launcher.stdout.close()
    deadline = time.monotonic() + 20
    while is_alive(pid):
        assert time.monotonic() < deadline
        time.sleep(0.01)


async def test_a_very_long_line_does_not_stop_the_reading(tmp_path, monkeypatch):
    """A line beyond the limit is dropped and the next ones are read."""
    monkeypatch.setattr("quire_launcher.child.MAX_LINE_BYTES", 1000)
    lines = []
    code = "print('x' * 100_000); print('after')"
    child = Child(
        Command("a", [sys.executable, "-c", code]), tmp_path / "a.log", lambda _, line: lines.append(line)
    )
    await child.start()
    assert await child.wait() == 0
    assert lines[-1] == "after"


def test_a_full_log_file_is_moved_aside(tmp_path):
    """Logs take a bounded part of the disk."""
    with LogFile(tmp_path / "a.log", max_bytes=10) as log:
        for text in (b"first\n", b"second\n", b"third\n"):
            log.write(text)
    assert (tmp_path / "a.log").read_bytes() == b"third\n"
    assert (tmp_path / "a.log.1").read_bytes() == b"second\n"


def test_exit_status_in_words():
    """A status tells whether the process left or was ended, and by what."""
    assert describe_exit(3) == "exited with status 3"
    assert describe_exit(-9) == "was ended by SIGKILL"
    assert describe_exit(-250) == "was ended by signal 250"
