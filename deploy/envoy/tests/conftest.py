"""The real Envoy binary in front of a gateway that does what a request's body tells it to."""

from __future__ import annotations

import runpy
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import grpc
import httpx
import pytest

from quire_envoy import EdgeSettings, command, render, write_config

# Modules beside a test file are not importable by name; the program is also run as a process of its own.
_PROGRAM = Path(__file__).with_name("fake_gateway.py")
FakeGateway = runpy.run_path(str(_PROGRAM))["FakeGateway"]


def _free_ports(count):
    """Ports that were free a moment ago."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


@contextmanager
def _running_edge(folder, wait_path="/health", wait_on_admin=False, **values):
    """Envoy with these settings, ready; the object has `url`, `target`, `settings`, `process` and `http`."""
    port, admin_port = _free_ports(2)
    settings = EdgeSettings(port=port, admin=f"127.0.0.1:{admin_port}", health_interval_s=0.2, **values)
    config = folder / f"envoy-{port}.json"
    write_config(render(settings), config)
    process = subprocess.Popen(command(settings, config))
    scheme = "https" if settings.tls else "http"
    edge = SimpleNamespace(
        url=f"{scheme}://127.0.0.1:{port}", target=f"127.0.0.1:{port}", settings=settings, process=process
    )
    ready = f"http://{settings.admin}/ready" if wait_on_admin else edge.url + wait_path
    try:
        _wait(lambda: httpx.get(ready, verify=False, trust_env=False).status_code == 200, process)
        with httpx.Client(base_url=edge.url, timeout=20, verify=False, trust_env=False) as edge.http:
            yield edge
    finally:
        process.kill()
        process.wait()


def _wait(condition, process=None, timeout_s=20):
    """Poll until `condition` holds; connection errors count as not yet."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        assert process is None or process.poll() is None, "Envoy ended by itself"
        try:
            if condition():
                return
        except httpx.TransportError:
            pass
        time.sleep(0.02)
    raise TimeoutError("the condition did not come true")


@pytest.fixture(scope="session")
def free_ports():
    """The function that finds free ports."""
    return _free_ports


@pytest.fixture(scope="session")
def wait_until():
    """The function that polls a condition."""
    return _wait


@pytest.fixture(scope="session")
def start_gateway():
    """Start fake gateways by port and name; all are stopped at the end."""
    started = []

    def start(port, name="one"):
        started.append(FakeGateway(port, name))
        started[-1].set_serving(True)
        return started[-1]

    yield start
    for each in started:
        each.stop()


@pytest.fixture
def gateway_process():
    """Start fake gateways as processes by port: they can be killed or frozen. Killed at the end."""
    started = []

    def start(port):
        started.append(subprocess.Popen([sys.executable, str(_PROGRAM), str(port)]))
        return started[-1]

    yield start
    for each in started:
        each.kill()
        each.wait()


@pytest.fixture(scope="session")
def running_edge(tmp_path_factory):
    """Context manager that runs Envoy with the given settings."""

    def run(**values):
        return _running_edge(tmp_path_factory.mktemp("envoy"), **values)

    return run


@pytest.fixture(scope="session")
def gateway(start_gateway):
    """The gateway that most tests share, with its address."""
    (port,) = _free_ports(1)
    shared = start_gateway(port)
    shared.address = f"127.0.0.1:{port}"
    return shared


@pytest.fixture(scope="session")
def edge(running_edge, gateway, tmp_path_factory):
    """Envoy with plain settings in front of the shared gateway."""
    log = tmp_path_factory.mktemp("log") / "access.log"
    with running_edge(gateways=(gateway.address,), access_log=log, max_request_bytes=8 << 20) as running:
        yield running


@pytest.fixture
def channel(edge):
    """A gRPC channel to the edge."""
    with grpc.insecure_channel(edge.target) as opened:
        yield opened
