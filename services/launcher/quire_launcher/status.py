"""`quire status`: what each process says of itself, now.

One job: ask and show. It needs no launcher: the services are asked on the ports of the suite.
"""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

from quire_launcher.layout import EMBED_SERVICES, SERVICES, Ports, StateFolder
from quire_launcher.readiness import HEALTH_NAMES, http_status

TIMEOUT_S = 2.0


def show_status(port: int, *, as_json: bool) -> int:
    """Print the status of the suite on `port`; 0 when all of it is healthy, 1 when a part is not, 3 when none runs."""
    status = asyncio.run(collect_status(port))
    if as_json:
        print(json.dumps(status, indent=2))
    else:
        _print_table(status)
    if not status["running"]:
        return 3
    return 0 if status["healthy"] else 1


async def collect_status(port: int) -> dict[str, Any]:
    """The status as JSON-like values.

    `services` has an entry each with `health` ("serving", "not serving" or "down"), `address`, `pid` and `restarts`;
    the scheduler's has `waiting`, `running` and `blocks` (total, free, used, cached) too, when it answers.
    """
    ports = Ports(port)
    folder = StateFolder.find(port)
    launched = folder is not None and folder.is_running()
    state = folder.read() if folder is not None and launched else {}
    processes = state.get("processes", {})
    names = (*SERVICES, *(name for name in EMBED_SERVICES if name in processes))
    services, load, envoy = await asyncio.gather(
        asyncio.gather(*(_health(ports.address(name), HEALTH_NAMES[name]) for name in names)),
        _load(ports.address("scheduler")),
        http_status(ports.address("envoy"), "/health"),
    )
    processes = state.get("processes", {})
    entries: dict[str, dict[str, Any]] = {}
    for name, health in zip(names, services, strict=True):
        entries[name] = {"health": health, "address": ports.address(name), **_process(processes.get(name))}
    entries["scheduler"].update(load)
    edge = "down" if envoy is None else "serving" if envoy == 200 else "not serving"
    everything = [*services, edge]
    return {
        "port": port,
        "url": f"http://127.0.0.1:{port}/v1",
        "running": launched or any(health != "down" for health in everything),
        "healthy": all(health == "serving" for health in everything),
        "launcher_pid": state.get("pid"),
        "uptime_s": round(time.time() - state["started_at"], 1) if "started_at" in state else None,
        "services": entries,
        "envoy": {"health": edge, "address": ports.address("envoy"), **_process(processes.get("envoy"))},
    }


def _process(process: dict[str, Any] | None) -> dict[str, Any]:
    process = process or {}
    return {"pid": process.get("pid"), "restarts": process.get("restarts")}


async def _health(address: str, service: str) -> str:
    import grpc
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    from quire_servicekit.channel import connect

    channel = connect(address)
    try:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        answer = await stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=TIMEOUT_S)
    except grpc.aio.AioRpcError as error:
        return "down" if error.code() is grpc.StatusCode.UNAVAILABLE else "not serving"
    finally:
        await channel.close()
    return "serving" if answer.status == health_pb2.HealthCheckResponse.SERVING else "not serving"


async def _load(address: str) -> dict[str, Any]:
    """The scheduler's load; empty when it does not answer."""
    import grpc

    from quire.scheduler.v1 import load_pb2, scheduler_service_pb2_grpc
    from quire_servicekit.channel import connect

    channel = connect(address)
    try:
        stub = scheduler_service_pb2_grpc.SchedulerStub(channel)
        answer = await stub.GetLoad(load_pb2.GetLoadRequest(), timeout=TIMEOUT_S)
    except grpc.aio.AioRpcError:
        return {}
    finally:
        await channel.close()
    load = answer.load
    return {
        "waiting": load.num_waiting,
        "running": load.num_running,
        "waiting_tokens": load.num_waiting_tokens,
        "blocks": {
            "total": load.num_total_blocks,
            "free": load.num_free_blocks,
            "used": load.num_used_blocks,
            "cached": load.num_cached_blocks,
        },
        "has_worker": answer.has_worker,
        "draining": answer.is_draining,
        "steps": answer.num_steps,
        "preemptions": answer.num_preemptions,
    }


def _print_table(status: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    if not status["running"]:
        console.print(f"no suite runs on port {status['port']}")
        return
    table = Table(box=None, header_style="bold")
    for column in ("process", "health", "address", "pid", "restarts"):
        table.add_column(column)
    colours = {"serving": "green", "not serving": "yellow", "down": "red"}
    for name, entry in [*status["services"].items(), ("envoy", status["envoy"])]:
        health = f"[{colours[entry['health']]}]{entry['health']}[/]"
        cells = [str(entry[key]) if entry[key] is not None else "-" for key in ("address", "pid", "restarts")]
        table.add_row(name, health, *cells)
    console.print(table)
    scheduler = status["services"]["scheduler"]
    if "blocks" in scheduler:
        blocks = ", ".join(f"{value} {key}" for key, value in scheduler["blocks"].items())
        line = f"requests: {scheduler['waiting']} waiting, {scheduler['running']} running; blocks: {blocks}"
        console.print(line, soft_wrap=True)
