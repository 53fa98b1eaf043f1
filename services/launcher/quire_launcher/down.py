"""`quire down`: asks a suite's launcher to stop, and waits until it has."""

from __future__ import annotations

import os
import signal
import time

from quire_launcher.layout import StateFolder
from quire_launcher.output import Output

POLL_S = 0.05


def stop_suite(port: int, *, timeout_s: float, now: bool) -> int:
    """Stop the suite on `port`; the exit status. A suite that does not run is stopped already.

    Running requests end first, within their drain time; with `now`, or after `timeout_s`, everything is ended at once.
    """
    output = Output(show_services=False)
    folder = StateFolder.find(port)
    if folder is None or not folder.is_running():
        output.say(f"no suite runs on port {port}")
        if folder is not None:
            folder.clear()
        return 0
    pid = folder.read().get("pid")
    if not isinstance(pid, int):
        output.failure(f"the suite on port {port} is just starting or ending, try again", [])
        return 1
    _signal(pid)
    if now:
        _signal(pid)
    if not _wait(folder, timeout_s):
        output.say(f"still running after {timeout_s:g} s, ending it at once")
        _signal(pid)
        if not _wait(folder, 10.0):
            output.failure(f"process {pid} does not end", [])
            return 1
    output.say(f"stopped the suite on port {port}")
    return 0


def _wait(folder: StateFolder, timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while folder.is_running():
        if time.monotonic() >= deadline:
            return False
        time.sleep(POLL_S)
    return True


def _signal(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGTERM)
    except ProcessLookupError:
        return
