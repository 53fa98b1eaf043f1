"""The route table: which requests reach a gateway, and what the rest is told.

One job: routes and their per-route settings. After transcoding Envoy matches a second time, on the gRPC path.
"""

from __future__ import annotations

from typing import Any

from quire_envoy.contracts import HEALTH_SERVICE, PUBLIC_SERVICES, REFLECTION_SERVICES, RestPath
from quire_envoy.settings import EdgeSettings

GATEWAY_CLUSTER = "gateway"
# Replies that come without authorization being asked: probes of orchestrators have no key.
HEALTH_PATH, LIVE_PATH = "/health", "/live"
# Answered by the gateway, without a key too.
OPEN_PATHS = frozenset({"/ready", "/openapi.json", "/docs"})

API_KEY_FILTER = "envoy.filters.http.api_key_auth"
RATE_LIMIT_FILTER = "envoy.filters.http.local_ratelimit"
CORS_FILTER = "envoy.filters.http.cors"

# What browsers may send: a wildcard would not cover `authorization`. The x-stainless ones come from their clients.
_CORS_REQUEST_HEADERS = (
    "authorization, content-type, x-api-key, x-request-id, traceparent, tracestate, openai-organization, "
    "openai-project, openai-beta, anthropic-version, anthropic-beta, anthropic-dangerous-direct-browser-access, "
    "x-stainless-arch, x-stainless-async, x-stainless-helper-method, x-stainless-lang, "
    "x-stainless-os, x-stainless-package-version, x-stainless-retry-count, x-stainless-runtime, "
    "x-stainless-runtime-version, x-stainless-timeout"
)
_CORS_RESPONSE_HEADERS = (
    "x-request-id, request-id, retry-after, x-ratelimit-limit, x-ratelimit-remaining, x-ratelimit-reset"
)


def route_config(settings: EdgeSettings, paths: list[RestPath]) -> dict[str, Any]:
    """One virtual host for every name. Order matters: the first match wins."""
    routes = [_grpc_route(service) for service in PUBLIC_SERVICES]
    routes.append(_without_key(_grpc_route(HEALTH_SERVICE), settings))
    routes += [_grpc_route(service) for service in REFLECTION_SERVICES]
    for path in paths:
        found = _rest_routes(path, settings)
        routes += [_without_key(route, settings) for route in found] if path.template in OPEN_PATHS else found
    unknown = (
        "Unknown path. The REST interface is under /v1 and /quire/v1; gRPC services answer on this port too."
    )
    routes.append({"match": {"prefix": "/"}, "direct_response": _direct(404, unknown)})
    host: dict[str, Any] = {
        "name": "public",
        "domains": ["*"],
        "routes": routes,
        # Anthropic's client reads the request's id from this name.
        "response_headers_to_add": [
            {
                "header": {"key": "request-id", "value": "%REQ(x-request-id)%"},
                "append_action": "ADD_IF_ABSENT",
            }
        ],
    }
    if settings.cors_origins:
        host["typed_per_filter_config"] = {CORS_FILTER: _cors_policy(settings)}
    return {"name": "public", "virtual_hosts": [host]}


def _to_gateway() -> dict[str, Any]:
    retry = {
        # Only failures after which the gateway cannot have begun to work.
        "retry_on": "connect-failure,refused-stream,reset-before-request",
        "num_retries": 3,
        "retry_host_predicate": [
            {
                "name": "envoy.retry_host_predicates.previous_hosts",
                "typed_config": {
                    "@type": "type.googleapis.com/envoy.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate"
                },
            }
        ],
        "host_selection_retry_max_attempts": 5,
        "retry_back_off": {"base_interval": "0.025s", "max_interval": "0.25s"},
    }
    # A generation may take any time: the deadline is the client's (grpc-timeout), or the scheduler's.
    return {"cluster": GATEWAY_CLUSTER, "timeout": "0s", "retry_policy": retry}


def _grpc_route(service: str) -> dict[str, Any]:
    """All methods of a gRPC service; plain HTTP on such a path falls through to 404."""
    return {"match": {"prefix": f"/{service}/", "grpc": {}}, "route": _to_gateway()}


def _without_key(route: dict[str, Any], settings: EdgeSettings) -> dict[str, Any]:
    """The route with API keys and rate limits switched off, where they are on."""
    off = {
        "@type": "type.googleapis.com/envoy.config.route.v3.FilterConfig",
        "disabled": True,
        "config": {},
    }
    filters = {}
    if settings.api_keys:
        filters[API_KEY_FILTER] = off
    if settings.rate_limit:
        filters[RATE_LIMIT_FILTER] = off
    return {**route, "typed_per_filter_config": filters} if filters else route


def _rest_routes(path: RestPath, settings: EdgeSettings) -> list[dict[str, Any]]:
    """The path with its methods, browsers' preflights of it, and 405 for every other method."""
    methods = [_method_match(method) for method in path.methods]
    routes: list[dict[str, Any]] = [
        # Seen by the filters before the transcoder; the transcoded request then matches its gRPC route.
        {"match": {**_path_match(path), "headers": [method]}, "route": _to_gateway()}
        for method in methods
    ]
    if settings.cors_origins:
        # The CORS filter answers a preflight only where a real route matches; nothing reaches the gateway.
        preflight = [
            _method_match("OPTIONS"),
            {"name": "origin", "present_match": True},
            {"name": "access-control-request-method", "present_match": True},
        ]
        routes.append({"match": {**_path_match(path), "headers": preflight}, "route": _to_gateway()})
    allowed = ", ".join(path.methods)
    routes.append(
        {
            "match": _path_match(path),
            "direct_response": _direct(405, f"This path takes {allowed} only."),
            "response_headers_to_add": [{"header": {"key": "allow", "value": allowed}}],
        }
    )
    return routes


def _path_match(path: RestPath) -> dict[str, Any]:
    return {"path": path.template} if path.is_literal else {"safe_regex": {"regex": path.regex}}


def _method_match(method: str) -> dict[str, Any]:
    return {"name": ":method", "string_match": {"exact": method}}


def _direct(status: int, text: str) -> dict[str, Any]:
    return {"status": status, "body": {"inline_string": text}}


def _cors_policy(settings: EdgeSettings) -> dict[str, Any]:
    any_origin = [{"safe_regex": {"regex": ".*"}}]
    listed = [{"exact": origin} for origin in settings.cors_origins]
    return {
        "@type": "type.googleapis.com/envoy.extensions.filters.http.cors.v3.CorsPolicy",
        "allow_origin_string_match": any_origin if "*" in settings.cors_origins else listed,
        "allow_methods": "GET, POST, DELETE, OPTIONS",
        "allow_headers": _CORS_REQUEST_HEADERS,
        "expose_headers": _CORS_RESPONSE_HEADERS,
        "max_age": "600",
    }
