"""How to tell that each process of the suite can do its work.

One job: ask, patiently. Services answer grpc.health.v1 under their full names, Envoy answers GET /health on the port of
the clients, which is 200 only when a gateway behind it is ready.
"""

from __future__ import annotations

import asyncio

#: How often a port that does not answer yet is tried. Cheap: refused connections on loopback.
POLL_S = 0.05
#: How often a server that answers, but is not ready, is asked again.
HEALTH_POLL_S = 0.1

HEALTH_NAMES = {
    "gateway": "quire.inference.v1.Inference",
    "tokenizer": "quire.tokenizer.v1.Tokenizer",
    "scheduler": "quire.scheduler.v1.Scheduler",
    "worker": "quire.worker.v1.Worker",
    "embed-tokenizer": "quire.tokenizer.v1.Tokenizer",
    "embed-scheduler": "quire.scheduler.v1.Scheduler",
    "embed-worker": "quire.worker.v1.Worker",
}


async def until_listening(address: str) -> None:
    """Return when something accepts connections on host:port."""
    host, _, port = address.rpartition(":")
    while True:
        try:
            _, writer = await asyncio.open_connection(host, int(port))
        except OSError:
            await asyncio.sleep(POLL_S)
        else:
            writer.close()
            return


async def until_serving(address: str, service: str) -> None:
    """Return when the gRPC server on host:port says SERVING for `service`."""
    await until_listening(address)
    # Imported late: the services are on their way by now, and gRPC takes a while to load.
    from quire_servicekit.channel import connect
    from quire_servicekit.health import check

    channel = connect(address)
    try:
        while not await check(channel, service, timeout_s=2.0):
            await asyncio.sleep(HEALTH_POLL_S)
    finally:
        await channel.close()


async def http_status(address: str, path: str, timeout_s: float = 1.0) -> int | None:
    """The status of GET `path` on host:port, by hand since nothing more is needed; None when there is no answer."""
    host, _, port = address.rpartition(":")
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await asyncio.open_connection(host, int(port))
            try:
                writer.write(f"GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n".encode())
                words = (await reader.readline()).split()
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return None
    return int(words[1]) if len(words) > 1 and words[1].isdigit() else None


async def until_healthy(address: str, path: str = "/health") -> None:
    """Return when GET `path` answers 200."""
    while await http_status(address, path) != 200:
        await asyncio.sleep(HEALTH_POLL_S)
