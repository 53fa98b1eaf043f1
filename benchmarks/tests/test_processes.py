"""Servers as child processes: made ready, measured, stopped, and failing with their own words."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import time
from pathlib import Path

import pytest

from quire_bench.locks import exclusive
from quire_bench.procstat import CpuMeter, ProcessInfo, proportional_set_bytes, read_process, tree
from quire_bench.server_process import ServerFailed, program_name, running

SERVER = """
import http.server, sys
bodies = [b'{"data": []}', b'{"data": [{"id": "m"}]}']
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = bodies.pop(0)
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def test_server_runs_while_the_block_does(tmp_path: Path) -> None:
    """The block begins when the server lists a model; in it its memory is seen; after it the process is gone."""
    port = free_port()
    command = [sys.executable, "-c", SERVER, str(port)]
    async with running(
        "it", command, f"http://127.0.0.1:{port}/v1", tmp_path / "log", ready_timeout_s=20
    ) as server:
        assert [info.pid for info in tree([server.pid])] == [server.pid]
        assert server.memory_bytes() > 1_000_000
        pid = server.pid
    assert read_process(pid) is None


async def test_server_that_ends_is_named_with_its_last_words(tmp_path: Path) -> None:
    """A server that ends before it answers is an error with its status and the end of its output."""
    command = [sys.executable, "-c", "import sys; print('no such model'); sys.exit(3)"]
    with pytest.raises(ServerFailed, match=r"(?s)it ended with status 3.*no such model"):
        async with running("it", command, "http://127.0.0.1:9/v1", tmp_path / "log", ready_timeout_s=20):
            pass


async def test_server_that_stays_silent_is_stopped(tmp_path: Path) -> None:
    """A server that never answers is an error after the time allowed, and does not stay."""
    command = [
        sys.executable,
        "-c",
        f"import os, time; open('{tmp_path}/pid', 'w').write(str(os.getpid())); time.sleep(60)",
    ]
    with pytest.raises(ServerFailed, match="lists no model"):
        async with running("it", command, "http://127.0.0.1:9/v1", tmp_path / "log", ready_timeout_s=0.5):
            pass
    assert read_process(int((tmp_path / "pid").read_text())) is None


def test_meter_counts_what_the_tree_uses() -> None:
    """Work done between start and stop shows under the process's label."""
    meter = CpuMeter([os.getpid()], lambda info: "me" if info.pid == os.getpid() else "child")
    meter.start()
    end = time.process_time() + 0.05
    while time.process_time() < end:
        pass
    assert 0.02 <= meter.stop()["me"] <= 5
    assert proportional_set_bytes([os.getpid()]) > 1_000_000


def test_processes_that_are_gone_are_left_out() -> None:
    """A process id that nobody has is no process and an empty tree."""
    assert read_process(2**22 + 1) is None
    assert tree([2**22 + 1]) == []


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (("/v/bin/python", "/v/bin/quire-gateway", "--listen", "x"), "gateway"),
        (("/v/bin/python", "/v/bin/quire-worker-sim"), "worker"),
        (("/site/envoy/envoy", "-c", "x"), "envoy"),
        (("/v/bin/python", "/v/bin/quire", "up"), "launcher"),
        (("sleep", "5"), "other"),
    ],
)
def test_programs_are_named_by_their_command(command: tuple[str, ...], name: str) -> None:
    """Each service of the suite is recognised by its program, whatever interpreter runs it."""
    assert program_name(ProcessInfo(1, 0, command, 0.0)) == name


async def test_lock_is_held_alone(tmp_path: Path) -> None:
    """While one holds the lock another waits for it; afterwards it has it."""
    path = tmp_path / "lock"
    order = []

    async def second() -> None:
        async with exclusive(path):
            order.append("second")

    async with exclusive(path):
        waiting = asyncio.create_task(second())
        await asyncio.sleep(0.05)
        order.append("first")
    await waiting
    assert order == ["first", "second"]
