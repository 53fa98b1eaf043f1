"""The suite as commands: which processes run on one machine, with which flags, and how each is known to be ready.

One job: turn UpOptions into supervisor Specs. This is the only place that knows the services' flags.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from quire_launcher import readiness
from quire_launcher.child import Command
from quire_launcher.layout import StateFolder
from quire_launcher.loading import until_loaded
from quire_launcher.model import Model, resolve_model
from quire_launcher.options import UpOptions
from quire_launcher.supervisor import Spec

#: Ends first what clients touch, so that what is behind it can finish their requests.
STOP_ORDER = (
    ("envoy",),
    ("gateway",),
    ("tokenizer", "scheduler", "embed-tokenizer", "embed-scheduler"),
    ("worker", "embed-worker"),
)
#: Seconds that running requests get to end when the suite stops.
DRAIN_S = 10.0


def services(options: UpOptions, folder: StateFolder) -> list[Spec]:
    """The services, the slowest to start first. Raises ValueError for a model that is not there."""
    model = resolve_model(options.model, options.served_model_name)
    flags: dict[str, list[str]] = {
        "worker": _worker_flags(options, model),
        "tokenizer": ["--model", str(model.path)],
        "scheduler": [
            "--worker", options.ports.address("worker"), "--tokenizer", options.ports.address("tokenizer"),
        ],
        "gateway": [
            "--tokenizers", options.ports.address("tokenizer"),
            "--schedulers", options.ports.address("scheduler"),
        ],
    }  # fmt: skip
    if options.embedding_model is not None:
        flags |= _second_engine(options, resolve_model(options.embedding_model))
        schedulers = [options.ports.address("scheduler"), options.ports.address("embed-scheduler")]
        pair = f"{options.ports.address('embed-scheduler')}={options.ports.address('embed-tokenizer')}"
        flags["gateway"] = [
            "--tokenizers", options.ports.address("tokenizer"), "--schedulers", ",".join(schedulers),
            "--engine-tokenizers", pair,
        ]  # fmt: skip
    return [_service(name, own, options, folder) for name, own in flags.items()]


def _second_engine(options: UpOptions, model: Model) -> dict[str, list[str]]:
    """The engine of the embedding model, with a vocabulary of its own; a real one also beside a simulated worker."""
    worker = ["--model", str(model.path), "--served-model-name", model.served_name, "--task", "embed"]
    if options.device is not None:
        worker += ["--device", options.device]
    return {
        "embed-worker": worker,
        "embed-tokenizer": ["--model", str(model.path)],
        "embed-scheduler": ["--worker", options.ports.address("embed-worker")],
    }


def _worker_flags(options: UpOptions, model: Model) -> list[str]:
    flags = ["--model", str(model.path), "--served-model-name", model.served_name]
    if options.simulate:
        flags += ["--step-base-ms", f"{options.step_ms:g}"]
    elif options.device is not None:
        flags += ["--device", options.device]
    return flags


def _service(name: str, flags: list[str], options: UpOptions, folder: StateFolder) -> Spec:
    ports = options.ports
    is_simulated = name == "worker" and options.simulate
    program = "quire-worker-sim" if is_simulated else f"quire-{name.removeprefix('embed-')}"
    section = options.sections.get(name, {})
    common = ["--listen", ports.address(name), "--metrics-listen", ports.metrics_address(name)]
    # Read by people, in the terminal and in the log files; a section of the config file may say otherwise.
    if "log_format" not in section:
        common += ["--log-format", "console"]
    if options.log_level is not None:
        common += ["--log-level", options.log_level]
    if "drain_timeout_s" not in section:
        common += ["--drain-timeout-s", f"{DRAIN_S:g}"]
    if section:
        path = folder.path / f"{name}.yaml"
        path.write_text(yaml.safe_dump(section))
        common += ["--config", str(path)]
    drain_s = float(section.get("drain_timeout_s", DRAIN_S))
    return Spec(
        command=Command(name, [executable(program), *flags, *common], _environment()),
        until_ready=_until_ready(name, ports.address(name)),
        stop_timeout_s=drain_s + 5.0,
    )


def _until_ready(name: str, address: str) -> Callable[[], Awaitable[None]]:
    if name in ("worker", "embed-worker"):
        return partial(until_loaded, address)
    return partial(readiness.until_serving, address, readiness.HEALTH_NAMES[name])


def _environment() -> dict[str, str]:
    # gRPC's C core would print its own lines about connections that are tried before the peer is up.
    return {"PYTHONUNBUFFERED": "1", "PYTHONSAFEPATH": "1", "GRPC_VERBOSITY": "NONE"}


def executable(program: str) -> str:
    """The program's path: beside this interpreter, else on PATH. Raises ValueError when it is not installed."""
    beside = Path(sys.executable).parent / program
    found = str(beside) if beside.exists() else shutil.which(program)
    if found is None:
        raise ValueError(f"the program {program} is not installed")
    return found


def edge(options: UpOptions, folder: StateFolder) -> Spec:
    """Envoy, with its configuration written. Raises ValueError for settings that cannot be used."""
    # Imported late: the services are starting meanwhile.
    import quire_envoy

    settings = edge_settings(options)
    config = folder.path / "envoy.json"
    quire_envoy.write_config(quire_envoy.render(settings), config)
    return Spec(
        command=Command("envoy", quire_envoy.command(settings, config)),
        until_ready=partial(readiness.until_healthy, f"127.0.0.1:{options.port}"),
        stop_timeout_s=settings.drain_timeout_s + 5.0,
        before_stop=partial(_drain, partial(quire_envoy.drain, settings)),
    )


def edge_settings(options: UpOptions) -> Any:
    """The edge's settings: the `envoy` section of the config file, on this suite's ports."""
    from quire_envoy.settings import EdgeSettings, load_settings

    ports = options.ports
    overrides: dict[str, Any] = {
        "drain_timeout_s": DRAIN_S,
        # Ready when the gateway can serve, not when it is alive; asked often, since a start waits for the answer.
        "health_service": readiness.HEALTH_NAMES["gateway"],
        "health_interval_s": 0.25,
        **options.sections.get("envoy", {}),
        "host": options.host,
        "port": options.port,
        "admin": ports.address("envoy admin"),
        "gateways": [ports.address("gateway")],
    }
    settings: EdgeSettings = load_settings(None, overrides)
    return settings


async def _drain(drain: Callable[[], int]) -> None:
    import asyncio

    try:
        await asyncio.to_thread(drain)
    except OSError:
        # Envoy is not there to be asked: then nothing runs through it either.
        return
