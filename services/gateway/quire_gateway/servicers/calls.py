"""What a call's metadata says, as domain data."""

from __future__ import annotations

from typing import Any

from quire_gateway.requests import CallInfo


def call_info(context: Any) -> CallInfo:
    """The CallInfo of an RPC."""
    metadata = {key: value for key, value in context.invocation_metadata() or () if isinstance(value, str)}
    remaining_s = context.time_remaining()
    return CallInfo(
        client_request_id=metadata.get("x-request-id", ""),
        tenant=metadata.get("x-client-id", ""),
        traceparent=metadata.get("traceparent", ""),
        timeout_s=remaining_s if remaining_s is not None and remaining_s < _FOREVER_S else None,
        is_transcoded="x-envoy-original-path" in metadata,
    )


#: gRPC reports a missing deadline as one in the far future.
_FOREVER_S = 10 * 365 * 86400
