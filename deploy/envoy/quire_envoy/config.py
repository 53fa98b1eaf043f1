"""Envoy's whole configuration from the settings. One job: put the parts together; it starts nothing."""

from __future__ import annotations

from typing import Any

from quire_envoy.clusters import OTLP_CLUSTER, clusters
from quire_envoy.contracts import load_descriptors, rest_paths
from quire_envoy.filters import CLIENT_HEADER, http_filters
from quire_envoy.replies import local_reply_config
from quire_envoy.routes import HEALTH_PATH, LIVE_PATH, route_config
from quire_envoy.settings import EdgeSettings, Tls, split_address

# Prefix of the listener's counters; draining reads one of them.
STAT_PREFIX = "public"
_HCM = "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"
_LISTENER_BUFFER_BYTES = 64 * 1024


def render(settings: EdgeSettings) -> dict[str, Any]:
    """The bootstrap as a JSON-like value. Write it as JSON: YAML turns some names into booleans.

    Reads the installed descriptor set. FileNotFoundError if the contracts are not built.
    """
    admin_host, admin_port = split_address(settings.admin)
    admin_address = {"socket_address": {"address": admin_host, "port_value": admin_port}}
    return {
        "node": {"id": "quire-edge", "cluster": "quire"},
        "admin": {"address": admin_address},
        "static_resources": {"listeners": [_listener(settings)], "clusters": clusters(settings)},
        "overload_manager": _overload_manager(settings),
    }


def _overload_manager(settings: EdgeSettings) -> dict[str, Any]:
    kind = "envoy.extensions.resource_monitors.downstream_connections.v3.DownstreamConnectionsConfig"
    monitor = {
        "name": "envoy.resource_monitors.global_downstream_max_connections",
        "typed_config": {
            "@type": f"type.googleapis.com/{kind}",
            "max_active_downstream_connections": settings.max_connections,
        },
    }
    return {"resource_monitors": [monitor]}


def _listener(settings: EdgeSettings) -> dict[str, Any]:
    chain: dict[str, Any] = {
        "filters": [
            {"name": "envoy.filters.network.http_connection_manager", "typed_config": _http(settings)}
        ]
    }
    if settings.tls:
        chain["transport_socket"] = _tls(settings.tls)
    return {
        "name": "public",
        "address": {"socket_address": {"address": settings.host, "port_value": settings.port}},
        "per_connection_buffer_limit_bytes": _LISTENER_BUFFER_BYTES,
        "filter_chains": [chain],
    }


def _http(settings: EdgeSettings) -> dict[str, Any]:
    """The connection manager: HTTP/1.1 and HTTP/2 on one port, no time limit on a stream."""
    manager: dict[str, Any] = {
        "@type": _HCM,
        "stat_prefix": STAT_PREFIX,
        "codec_type": "AUTO",
        "route_config": route_config(settings, rest_paths(load_descriptors())),
        "http_filters": http_filters(settings),
        "local_reply_config": local_reply_config(),
        "early_header_mutation_extensions": [_drop_forged_headers()],
        # A quiet stream may wait in the queue for long; half-sent requests may not.
        "stream_idle_timeout": "0s",
        "request_timeout": "0s",
        "request_headers_timeout": "10s",
        "delayed_close_timeout": "1s",
        "use_remote_address": True,
        "skip_xff_append": False,
        "generate_request_id": True,
        "preserve_external_request_id": True,
        "always_set_request_id_in_response": True,
        "server_header_transformation": "OVERWRITE",
        "server_name": "quire",
        "normalize_path": True,
        "merge_slashes": True,
        "path_with_escaped_slashes_action": "KEEP_UNCHANGED",
        "http2_protocol_options": {
            "max_concurrent_streams": 1024,
            "initial_stream_window_size": 256 * 1024,
            "initial_connection_window_size": 1024 * 1024,
        },
    }
    if settings.access_log:
        manager["access_log"] = [_access_log(str(settings.access_log))]
    if settings.otlp_endpoint:
        manager["tracing"] = _tracing()
    return manager


def _drop_forged_headers() -> dict[str, Any]:
    """What only the edge may say is taken out of requests before anything else looks at them."""
    names = (CLIENT_HEADER, "x-envoy-original-path", "x-envoy-original-method")
    kind = "envoy.extensions.http.early_header_mutation.header_mutation.v3.HeaderMutation"
    return {
        "name": "envoy.http.early_header_mutation.header_mutation",
        "typed_config": {
            "@type": f"type.googleapis.com/{kind}",
            "mutations": [{"remove": name} for name in names],
        },
    }


def _tls(tls: Tls) -> dict[str, Any]:
    pair = {
        "certificate_chain": {"filename": str(tls.certificate)},
        "private_key": {"filename": str(tls.key)},
    }
    common: dict[str, Any] = {"alpn_protocols": ["h2", "http/1.1"], "tls_certificates": [pair]}
    context: dict[str, Any] = {
        "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext",
        "common_tls_context": common,
    }
    if tls.client_ca:
        common["validation_context"] = {"trusted_ca": {"filename": str(tls.client_ca)}}
        context["require_client_certificate"] = True
    return {"name": "envoy.transport_sockets.tls", "typed_config": context}


def _access_log(path: str) -> dict[str, Any]:
    """One JSON object a line; probes are left out."""
    fields = {
        "time": "%START_TIME%",
        "request_id": "%REQ(X-REQUEST-ID)%",
        "client": f"%REQ({CLIENT_HEADER})%",
        "method": "%REQ(X-ENVOY-ORIGINAL-METHOD?:METHOD)%",
        "path": "%REQ(X-ENVOY-ORIGINAL-PATH?:PATH)%",
        "protocol": "%PROTOCOL%",
        "status": "%RESPONSE_CODE%",
        "grpc_status": "%GRPC_STATUS%",
        "details": "%RESPONSE_CODE_DETAILS%",
        # DC: the client went away.
        "flags": "%RESPONSE_FLAGS%",
        "request_bytes": "%BYTES_RECEIVED%",
        "response_bytes": "%BYTES_SENT%",
        "duration_ms": "%DURATION%",
        "first_byte_ms": "%RESPONSE_DURATION%",
        "gateway": "%UPSTREAM_HOST%",
        "address": "%DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT%",
    }
    probes = [
        {
            "header_filter": {
                "header": {"name": ":path", "string_match": {"exact": path}, "invert_match": True}
            }
        }
        for path in (HEALTH_PATH, LIVE_PATH)
    ]
    return {
        "name": "envoy.access_loggers.file",
        "filter": {"and_filter": {"filters": probes}},
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog",
            "path": path,
            "log_format": {"json_format": fields},
        },
    }


def _tracing() -> dict[str, Any]:
    return {
        "provider": {
            "name": "envoy.tracers.opentelemetry",
            "typed_config": {
                "@type": "type.googleapis.com/envoy.config.trace.v3.OpenTelemetryConfig",
                "grpc_service": {"envoy_grpc": {"cluster_name": OTLP_CLUSTER}, "timeout": "1s"},
                "service_name": "quire-edge",
            },
        }
    }
