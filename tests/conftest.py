"""Whole suites as processes, for the tests that need one: started by `quire up`, stopped by `quire down`."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import grpc
import httpx
import openai
import pytest
import yaml

from quire.scheduler.v1 import load_pb2, scheduler_service_pb2_grpc

# These run in an environment of their own: `make compat`.
collect_ignore = ["compat"]

PROGRAMS = Path(sys.executable).parent
# Below the range that the kernel hands out, so that no other program is given one meanwhile.
FIRST_PORT, LAST_PORT, NUM_PORTS = 26000, 31000, 20


def pytest_configure(config):
    """Let SIGTERM end the tests as Ctrl-C does: suites in the background are then stopped, not left behind."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)


def _suite_port():
    """A port with those after it free, for a whole suite."""
    for base in range(FIRST_PORT, LAST_PORT, NUM_PORTS):
        if all(_is_free(base + offset) for offset in range(NUM_PORTS)):
            return base
    raise RuntimeError("no range of free ports")


def _is_free(port):
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _wait(condition, timeout_s=30.0, what="the condition"):
    """Poll until `condition` is true and return what it returned; errors of a connection count as not yet."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            if result := condition():
                return result
        except (grpc.RpcError, httpx.TransportError):
            pass
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} did not come true within {timeout_s} s")
        time.sleep(0.02)


class Suite:
    """A running suite and the ways to reach it."""

    def __init__(self, port, environment):
        self.port, self.environment = port, environment
        self.url = f"http://127.0.0.1:{port}"
        self.target = f"127.0.0.1:{port}"
        self.channel = grpc.insecure_channel(self.target)
        self.scheduler_channel = grpc.insecure_channel(f"127.0.0.1:{port + 3}")
        self.scheduler = scheduler_service_pb2_grpc.SchedulerStub(self.scheduler_channel)

    def command(self, *arguments):
        """Run `quire` for this suite; the completed process."""
        return subprocess.run(
            [PROGRAMS / "quire", *arguments, "--port", str(self.port)],
            capture_output=True, text=True, check=False, env=self.environment, timeout=180,
        )  # fmt: skip

    def status(self):
        """What `quire status --json` says."""
        return json.loads(self.command("status", "--json").stdout)

    def load(self):
        """The scheduler's load, asked of itself."""
        return self.scheduler.GetLoad(load_pb2.GetLoadRequest(), timeout=5)

    def wait_idle(self, timeout_s=30.0):
        """Wait until nothing waits or runs and every block is back, and return the load.

        Blocks come back a little after their request has gone: when the steps that may touch them have ended.
        """

        def idle():
            answer = self.load()
            load = answer.load
            return answer if load.num_running == load.num_waiting == load.num_used_blocks == 0 else None

        return _wait(idle, timeout_s, "an idle scheduler")

    def pid_of(self, service):
        """The process id of a service, or of "envoy"."""
        status = self.status()
        return (status["envoy"] if service == "envoy" else status["services"][service])["pid"]

    def wait_restarted(self, service, pid):
        """Wait until another process than `pid` runs the service and all is healthy."""

        def restarted():
            status = self.status()
            return status["healthy"] and status["services"][service]["pid"] not in (pid, None)

        _wait(restarted, 60, f"a new {service}")

    def openai(self, **options):
        """The real client, without retries of its own."""
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=120, **options)

    def close(self):
        """Close our own channels."""
        self.channel.close()
        self.scheduler_channel.close()


@contextmanager
def _running_suite(folder, *flags, **sections):
    """`quire up` with these flags and sections of settings; `quire down` at the end."""
    port = _suite_port()
    # A state folder of the test's own.
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(folder)}
    arguments = [PROGRAMS / "quire", "up", "--detach", "--port", str(port), *flags]
    if sections:
        config = folder / "suite.yaml"
        config.write_text(yaml.safe_dump(sections))
        arguments += ["--config", config]
    suite = Suite(port, environment)
    try:
        started = subprocess.run(
            arguments, capture_output=True, text=True, check=False, env=environment, timeout=180
        )
        assert started.returncode == 0, f"{started.stdout}\n{started.stderr}"
        yield suite
    finally:
        # Also when the start was interrupted: the launcher is in the background by then.
        suite.close()
        stopped = suite.command("down")
    assert stopped.returncode == 0, stopped.stdout + stopped.stderr


@pytest.fixture(scope="session")
def running_suite(tmp_path_factory):
    """Context manager that runs a suite with the given flags and sections."""

    def run(*flags, **sections):
        return _running_suite(tmp_path_factory.mktemp("suite"), *flags, **sections)

    return run


@pytest.fixture(scope="session")
def wait_until():
    """The function that polls a condition."""
    return _wait


@pytest.fixture(scope="session")
def free_suite_port():
    """The function that finds a range of free ports."""
    return _suite_port


@pytest.fixture(scope="session")
def simulated_suite(running_suite):
    """A suite without a model whose steps take two milliseconds."""
    with running_suite("--simulate", "--step-ms", "2") as suite:
        yield suite


@pytest.fixture(scope="session")
def smollm2_suite(running_suite):
    """A suite with the real model, on the CPU."""
    with running_suite("--model", "smollm2") as suite:
        yield suite
