"""Client channels between services: balanced, kept alive, quick to come back.

One job: make a grpc.aio channel with the right options for one address or several replicas. It knows no contract.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence

import grpc

from quire_servicekit.errors import Unavailable
from quire_servicekit.tracing import client_interceptors

_SERVICE_CONFIG = json.dumps({"loadBalancingConfig": [{"round_robin": {}}]})


def channel_options(max_message_bytes: int) -> list[tuple[str, int | str]]:
    """gRPC's channel arguments for a client."""
    return [
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.max_send_message_length", -1),
        ("grpc.service_config", _SERVICE_CONFIG),
        # A peer that is frozen, not closed, is found after about time + timeout.
        ("grpc.keepalive_time_ms", 10_000),
        ("grpc.keepalive_timeout_ms", 5_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        # A suite that starts, and a restarted peer, are back in a second or two: keep trying at a pace that adds
        # little to that. (min_... is how long one attempt may take.)
        ("grpc.initial_reconnect_backoff_ms", 50),
        ("grpc.min_reconnect_backoff_ms", 1_000),
        ("grpc.max_reconnect_backoff_ms", 500),
        # Channels to one address share no connection: the global pool would tie their fates and their windows.
        ("grpc.use_local_subchannel_pool", 1),
    ]


def target_of(addresses: Sequence[str]) -> str:
    """gRPC's target for `addresses`: host:port or unix:/path, one, or several host:port with IPv4 numbers.

    Raises ValueError for an empty list or a mixture that gRPC cannot balance over. A name that resolves to several
    replicas ("tokenizer:8082" in a cluster) is one address.
    """
    if not addresses:
        raise ValueError("addresses must name at least one server, got none")
    for address in addresses:
        if not address.startswith("unix:") and not address.rpartition(":")[2].isdigit():
            raise ValueError(f"addresses must be host:port or unix:/path, got {address!r}")
    if len(addresses) == 1:
        only = addresses[0]
        return only if only.startswith("unix:") else f"dns:///{only}"
    if not all(_is_ipv4(address.rpartition(":")[0]) for address in addresses):
        raise ValueError(f"several addresses must all be IPv4 numbers with ports, got {', '.join(addresses)}")
    return "ipv4:" + ",".join(addresses)


def _is_ipv4(host: str) -> bool:
    parts = host.split(".")
    return len(parts) == 4 and all(part.isdigit() and int(part) < 256 for part in parts)


def connect(
    addresses: str | Sequence[str], *, max_message_bytes: int = 64 << 20, otlp_endpoint: str | None = None
) -> grpc.aio.Channel:
    """A channel to one server, or to several in turn (per RPC). It connects in the background and reconnects."""
    target = target_of([addresses] if isinstance(addresses, str) else addresses)
    options = channel_options(max_message_bytes)
    return grpc.aio.insecure_channel(target, options, interceptors=client_interceptors(otlp_endpoint))


async def wait_for_ready(channel: grpc.aio.Channel, *, name: str, timeout_s: float) -> None:
    """Return when the channel is connected. Raises Unavailable, naming the peer, after `timeout_s`."""
    try:
        async with asyncio.timeout(timeout_s):
            await channel.channel_ready()
    except TimeoutError:
        raise Unavailable(name, message=f"{name} did not answer within {timeout_s:g} s") from None
