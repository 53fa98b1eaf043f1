"""`quire up --detach`: a launcher in a session of its own, and the wait until it says ready or why not.

One job. The two talk by a pipe; the launcher's own lines go to launcher.log.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from quire_launcher.layout import StateFolder
from quire_launcher.options import UpOptions
from quire_launcher.output import Output
from quire_launcher.up import log_of_launcher

READY_DESCRIPTOR_FLAG = "--ready-descriptor"


def start_detached(options: UpOptions, arguments: Sequence[str]) -> int:
    """Run `quire ARGUMENTS` in the background and return 0 when the suite is ready, 1 with the reason when it is not.

    Ctrl-C while waiting stops the suite that is starting.
    """
    log = log_of_launcher(StateFolder.create(options.port))
    reader, writer = os.pipe()
    command = [sys.executable, "-m", "quire_launcher", *arguments, READY_DESCRIPTOR_FLAG, str(writer)]
    with log.open("ab") as file:
        launcher = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
            pass_fds=(writer,),
            # The caller's folder may be removed while the suite runs.
            cwd="/",
        )
    os.close(writer)
    with Output(show_services=False) as output:
        try:
            status = _wait(options, reader, output)
            if status != 0:
                launcher.wait()
            return status
        except KeyboardInterrupt:
            launcher.terminate()
            launcher.wait()
            output.say("stopped")
            return 130


def _wait(options: UpOptions, reader: int, output: Output) -> int:
    for event in _events(reader):
        if event["event"] == "progress":
            output.progress(event["phase"], event["done"], event["total"])
        elif event["event"] == "ready":
            output.close()
            output.say(f"ready in {event['seconds']:.1f} s: http://127.0.0.1:{options.port}/v1")
            output.say(f"logs: quire logs --port {options.port}; stop: quire down --port {options.port}")
            return 0
        else:
            output.failure(event["reason"], event["tail"])
            return 1
    folder = StateFolder.create(options.port)
    lines = log_of_launcher(folder).read_text(errors="replace").splitlines()
    output.failure("the launcher ended without a word", lines[-20:])
    return 1


def _events(reader: int) -> Iterator[dict[str, Any]]:
    with os.fdopen(reader) as file:
        for line in file:
            yield json.loads(line)
