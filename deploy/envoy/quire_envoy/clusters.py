"""Where Envoy connects to: the gateways and, if set, the trace collector. One job: cluster definitions."""

from __future__ import annotations

from typing import Any

from quire_envoy.routes import GATEWAY_CLUSTER
from quire_envoy.settings import EdgeSettings, is_ip, split_address

OTLP_CLUSTER = "otlp"

# Small windows: a slow client then lets the gateway run ahead by about 3 MB instead of 7 to 16 MB.
STREAM_WINDOW_BYTES = 64 * 1024
CONNECTION_WINDOW_BYTES = 1024 * 1024
CONNECTION_BUFFER_BYTES = 64 * 1024


def clusters(settings: EdgeSettings) -> list[dict[str, Any]]:
    """All clusters that the settings ask for."""
    found = [_gateways(settings)]
    if settings.otlp_endpoint:
        found.append(
            {
                **_base(OTLP_CLUSTER, (settings.otlp_endpoint,)),
                **_http2({"explicit_http_config": {"http2_protocol_options": {}}}),
            }
        )
    return found


def _gateways(settings: EdgeSettings) -> dict[str, Any]:
    http2 = {
        "initial_stream_window_size": STREAM_WINDOW_BYTES,
        "initial_connection_window_size": CONNECTION_WINDOW_BYTES,
        # Finds a frozen gateway or a dead connection. Gateways must allow such pings (servicekit's servers do).
        "connection_keepalive": {
            "interval": f"{settings.ping_interval_s:.3f}s",
            "timeout": f"{settings.ping_timeout_s:.3f}s",
        },
    }
    health: dict[str, Any] = {
        "timeout": "1s",
        "interval": f"{settings.health_interval_s:.3f}s",
        "no_traffic_interval": f"{settings.health_interval_s:.3f}s",
        "unhealthy_threshold": 2,
        "healthy_threshold": 1,
        "grpc_health_check": {"service_name": settings.health_service} if settings.health_service else {},
    }
    thresholds = {
        "max_connections": settings.max_requests,
        "max_pending_requests": settings.max_requests,
        "max_requests": settings.max_requests,
        "max_retries": settings.max_requests,
    }
    return {
        **_base(GATEWAY_CLUSTER, settings.gateways),
        **_http2({"explicit_http_config": {"http2_protocol_options": http2}}),
        "lb_policy": "ROUND_ROBIN",
        "per_connection_buffer_limit_bytes": CONNECTION_BUFFER_BYTES,
        "health_checks": [health],
        "circuit_breakers": {"thresholds": [thresholds]},
        "outlier_detection": _outlier_detection(),
        # With no healthy gateway requests still go to one: it says best why it cannot serve, or it just came back.
        "common_lb_config": {"healthy_panic_threshold": {"value": 1}},
    }


def _outlier_detection() -> dict[str, Any]:
    """Ejects gateways that cannot be reached. An answer, whatever its status, never ejects: 503 may be the queue's."""
    return {
        "split_external_local_origin_errors": True,
        "consecutive_local_origin_failure": 3,
        "enforcing_consecutive_local_origin_failure": 100,
        "enforcing_local_origin_success_rate": 0,
        "enforcing_consecutive_5xx": 0,
        "enforcing_consecutive_gateway_failure": 0,
        "enforcing_success_rate": 0,
        "interval": "1s",
        "base_ejection_time": "2s",
        "max_ejection_time": "10s",
        "max_ejection_percent": 100,
    }


def _base(name: str, addresses: tuple[str, ...]) -> dict[str, Any]:
    """Name, endpoints and the way to resolve them."""
    by_name = any(not a.startswith("unix:") and not is_ip(split_address(a)[0]) for a in addresses)
    endpoints = [{"endpoint": {"address": _address(address)}} for address in addresses]
    return {
        "name": name,
        "type": "STRICT_DNS" if by_name else "STATIC",
        "connect_timeout": "1s",
        "load_assignment": {"cluster_name": name, "endpoints": [{"lb_endpoints": endpoints}]},
    }


def _address(address: str) -> dict[str, Any]:
    if address.startswith("unix:"):
        return {"pipe": {"path": address.removeprefix("unix:")}}
    host, port = split_address(address)
    return {"socket_address": {"address": host, "port_value": port}}


def _http2(options: dict[str, Any]) -> dict[str, Any]:
    kind = "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
    return {
        "typed_extension_protocol_options": {
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {"@type": kind, **options}
        }
    }
