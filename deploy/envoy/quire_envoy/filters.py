"""The HTTP filters in their order. One job: what happens to a request between the socket and the route.

health -> CORS -> API keys -> rate limit -> body limit -> status -> transcoder -> router. Answers pass them backwards.
"""

from __future__ import annotations

from typing import Any

from quire_envoy.contracts import PUBLIC_SERVICES, descriptors_path
from quire_envoy.routes import (
    API_KEY_FILTER,
    CORS_FILTER,
    GATEWAY_CLUSTER,
    HEALTH_PATH,
    LIVE_PATH,
    RATE_LIMIT_FILTER,
)
from quire_envoy.settings import ApiKey, EdgeSettings, RateLimit

# The tenant that the edge found; removed from what clients send (see config.py), so the gateway can trust it.
CLIENT_HEADER = "x-client-id"

# The gateway names the status of an HttpBody answer in a header. Native gRPC answers keep their 200: another status
# breaks gRPC clients. What remains of gRPC in a transcoded answer is taken out.
_STATUS_LUA = """
function envoy_on_response(handle)
  local headers = handle:headers()
  local content_type = headers:get("content-type")
  if content_type ~= nil and content_type:sub(1, 16) == "application/grpc" then return end
  local status = headers:get("x-http-status")
  if status ~= nil then
    headers:replace(":status", status)
    headers:remove("x-http-status")
  end
  headers:remove("grpc-status")
  headers:remove("grpc-message")
  headers:remove("grpc-accept-encoding")
end
"""


def http_filters(settings: EdgeSettings) -> list[dict[str, Any]]:
    """All filters that the settings ask for, in order."""
    filters = [_health(HEALTH_PATH, with_gateways=True), _health(LIVE_PATH, with_gateways=False)]
    if settings.cors_origins:
        filters.append(_filter(CORS_FILTER, "cors.v3.Cors", {}))
    if settings.api_keys:
        filters.append(_api_keys(settings.api_keys))
    if settings.rate_limit:
        filters.append(_rate_limit(settings.rate_limit, per_key=bool(settings.api_keys)))
    filters.append(_body_limit(settings))
    lua = {"default_source_code": {"inline_string": _STATUS_LUA}}
    filters.append(_filter("envoy.filters.http.lua", "lua.v3.Lua", lua))
    filters.append(_transcoder(settings))
    # Clients are not told about our inside.
    filters.append(_filter("envoy.filters.http.router", "router.v3.Router", {"suppress_envoy_headers": True}))
    return filters


def _filter(name: str, kind: str, config: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": name,
        "typed_config": {"@type": f"type.googleapis.com/envoy.extensions.filters.http.{kind}", **config},
    }


def _health(path: str, with_gateways: bool) -> dict[str, Any]:
    """Answers `path` here: 200, or 503 while draining or, if asked for, while no gateway is healthy."""
    config: dict[str, Any] = {
        "pass_through_mode": False,
        "headers": [{"name": ":path", "string_match": {"exact": path}}],
    }
    if with_gateways:
        config["cluster_min_healthy_percentages"] = {GATEWAY_CLUSTER: {"value": 1}}
    return _filter("envoy.filters.http.health_check", "health_check.v3.HealthCheck", config)


def _api_keys(keys: tuple[ApiKey, ...]) -> dict[str, Any]:
    """`Authorization: Bearer KEY` or `x-api-key: KEY`; the gateway gets the client's name and never the key."""
    config = {
        "credentials": [{"key": entry.key, "client": entry.client} for entry in keys],
        "key_sources": [{"header": "authorization"}, {"header": "x-api-key"}],
        "forwarding": {"header": CLIENT_HEADER, "hide_credentials": True},
    }
    return _filter(API_KEY_FILTER, "api_key_auth.v3.ApiKeyAuth", config)


def _rate_limit(limit: RateLimit, per_key: bool) -> dict[str, Any]:
    """One bucket for each client, in this Envoy process. 429 with Retry-After, RESOURCE_EXHAUSTED for gRPC."""
    client = {"request_headers": {"header_name": CLIENT_HEADER, "descriptor_key": "client"}}
    address: dict[str, Any] = {"remote_address": {}}
    bucket = {
        "max_tokens": limit.burst,
        "tokens_per_fill": limit.refill,
        "fill_interval": f"{limit.interval_s:.3f}s",
    }
    everything = {"numerator": 100, "denominator": "HUNDRED"}
    config = {
        "stat_prefix": "rate_limit",
        # Takes requests of no known client; there are none, so it only must be there and never be the limit.
        "token_bucket": {"max_tokens": 4_000_000_000, "fill_interval": "1s"},
        "always_consume_default_token_bucket": False,
        "filter_enabled": {"default_value": everything},
        "filter_enforced": {"default_value": everything},
        "rate_limits": [{"actions": [client if per_key else address]}],
        # An entry without a value makes a bucket for each value it meets.
        "descriptors": [
            {"entries": [{"key": "client" if per_key else "remote_address"}], "token_bucket": bucket}
        ],
        "max_dynamic_descriptors": limit.max_clients,
        "enable_retry_after_header": True,
        "enable_x_ratelimit_headers": "DRAFT_VERSION_03",
        "rate_limited_as_resource_exhausted": True,
    }
    return _filter(RATE_LIMIT_FILTER, "local_ratelimit.v3.LocalRateLimit", config)


def _body_limit(settings: EdgeSettings) -> dict[str, Any]:
    """413 for a larger body, whatever the protocol: the transcoder's own limit leaves typed bodies out."""
    config = {"max_request_bytes": settings.max_request_bytes}
    return _filter("envoy.filters.http.body_size_limit", "body_size_limit.v3.BodySizeLimit", config)


def _transcoder(settings: EdgeSettings) -> dict[str, Any]:
    config = {
        "proto_descriptor": str(descriptors_path()),
        "services": list(PUBLIC_SERVICES),
        # Names as in the contracts (snake_case), zeros shown, typed streams as server-sent events.
        "print_options": {
            "preserve_proto_field_names": True,
            "always_print_primitive_fields": True,
            "stream_newline_delimited": False,
            "stream_sse_style_delimited": True,
        },
        "convert_grpc_status": True,
        # Without it a request with an unknown query is not transcoded at all and fails with 503.
        "ignore_unknown_query_parameters": True,
        # Clients write the slash of a model's name as %2F.
        "url_unescape_spec": "ALL_CHARACTERS",
        "max_request_body_size": settings.max_request_bytes,
        "max_response_body_size": settings.max_response_bytes,
    }
    return _filter(
        "envoy.filters.http.grpc_json_transcoder", "grpc_json_transcoder.v3.GrpcJsonTranscoder", config
    )
