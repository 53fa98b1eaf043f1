"""What can be set about the edge, checked.

One job: typed values. It knows nothing of Envoy's configuration language.
"""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

MIB = 1024 * 1024


def split_address(address: str) -> tuple[str, int]:
    """`host:port` to its parts; IPv6 hosts stand in brackets. ValueError names the address and what is wrong."""
    host, colon, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError(f"{address!r} is not host:port with a port from 1 to 65535")
    return host, int(port)


def is_ip(host: str) -> bool:
    """Whether `host` is an IP address rather than a name to be resolved."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _endpoint(address: str) -> str:
    if address.startswith("unix:/"):
        return address
    split_address(address)
    return address


def _loopback(address: str) -> str:
    host, _ = split_address(address)
    if not (host == "localhost" or (is_ip(host) and ipaddress.ip_address(host).is_loopback)):
        raise ValueError(
            f"admin {address!r} must be on a loopback address: it can stop Envoy and shows its config"
        )
    return address


def _file(path: Path) -> Path:
    if not path.is_file():
        raise ValueError(f"{str(path)!r} is not a file")
    return path


# host:port, or unix:/path of a socket.
Endpoint = Annotated[str, AfterValidator(_endpoint)]
ExistingFile = Annotated[Path, AfterValidator(_file)]


class _Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ApiKey(_Settings):
    """One key and the client (tenant) that it stands for; several keys may name one client."""

    client: str = Field(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9_.@-]+$")
    key: str = Field(min_length=8, max_length=512, pattern=r"^[\x21-\x7e]+$", repr=False)


class RateLimit(_Settings):
    """Token bucket of one client: its key's client, or its address when no keys are set."""

    # Requests a client may send at once.
    burst: int = Field(ge=1)
    # Requests that come back per interval.
    refill: int = Field(ge=1)
    interval_s: float = Field(default=1.0, ge=0.05, le=3600)
    # Clients told apart; beyond this number the longest unused is forgotten.
    max_clients: int = Field(default=10_000, ge=1)


class Tls(_Settings):
    """Certificate of the public listener, PEM files."""

    certificate: ExistingFile
    key: ExistingFile
    # With a CA here every client must show a certificate signed by it.
    client_ca: ExistingFile | None = None


class EdgeSettings(_Settings):
    """Everything about the edge. Defaults are for one machine."""

    # Where clients connect. The default is reached from this machine only.
    host: str = "127.0.0.1"
    port: int = Field(default=8080, ge=1, le=65535)
    # Envoy's own interface, used to drain it. Never public.
    admin: Annotated[str, AfterValidator(_loopback)] = "127.0.0.1:8085"
    # Gateways, taken in turn; a name that resolves to several addresses counts as that many gateways.
    gateways: tuple[Endpoint, ...] = Field(default=("127.0.0.1:8081",), min_length=1)
    # The name that gateways report their readiness under (grpc.health.v1); "" asks only whether they live.
    health_service: str = "quire.inference.v1.Inference"
    health_interval_s: float = Field(default=1.0, ge=0.1, le=60)
    # HTTP/2 pings on idle gateway connections; a frozen gateway is noticed after about interval + timeout.
    ping_interval_s: float = Field(default=10.0, ge=1.0, le=3600)
    ping_timeout_s: float = Field(default=5.0, ge=0.5, le=60)

    tls: Tls | None = None
    # Keys of clients; none set means that everyone who reaches the port may call.
    api_keys: tuple[ApiKey, ...] = ()
    rate_limit: RateLimit | None = None
    # Browser origins that may call; "*" allows every one.
    cors_origins: tuple[str, ...] = ()

    # Largest request body and largest answer message (one whole JSON answer, or one event of a stream).
    max_request_bytes: int = Field(default=16 * MIB, ge=1024)
    max_response_bytes: int = Field(default=64 * MIB, ge=1024)
    # Requests under way at once, all clients together.
    max_requests: int = Field(default=16_384, ge=1)
    # Connections of clients at once; further ones are closed.
    max_connections: int = Field(default=16_384, ge=1)

    # One JSON line per request to this file; "/dev/stdout" works. None: no access log.
    access_log: Path | None = None
    # host:port of an OpenTelemetry collector (OTLP over gRPC). None: no traces from the edge.
    otlp_endpoint: Endpoint | None = None
    # Worker threads of Envoy. Rate limits and round robin hold per process, so threads do not change them.
    concurrency: int = Field(default=1, ge=1, le=256)
    log_level: str = Field(default="warning", pattern="^(trace|debug|info|warning|error|critical|off)$")
    # How long open requests may go on after a stop is asked for.
    drain_timeout_s: float = Field(default=30.0, ge=0)

    @model_validator(mode="after")
    def _keys_are_unique(self) -> EdgeSettings:
        seen: dict[str, str] = {}
        for entry in self.api_keys:
            if entry.key in seen:
                raise ValueError(
                    f"api_keys: clients {seen[entry.key]!r} and {entry.client!r} have the same key"
                )
            seen[entry.key] = entry.client
        return self


def read_api_keys(path: Path) -> tuple[ApiKey, ...]:
    """Keys from a file with one `client key` pair a line; empty lines and lines that begin with # are skipped.

    ValueError names the file and line of a malformed entry, never the key itself.
    """
    keys = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        fields = line.split()
        if not fields or fields[0].startswith("#"):
            continue
        if len(fields) != 2:
            raise ValueError(f"{path}:{number}: expected `client key`, found {len(fields)} fields")
        try:
            keys.append(ApiKey(client=fields[0], key=fields[1]))
        except ValueError:
            # The library's message would print the key.
            raise ValueError(
                f"{path}:{number}: the client must be 1-128 of A-Z a-z 0-9 _ . @ -, the key 8-512 printable characters"
            ) from None
    if not keys:
        raise ValueError(f"{path}: no keys in it; leave the file out to serve without keys")
    return tuple(keys)


def load_settings(path: Path | None, overrides: dict[str, Any]) -> EdgeSettings:
    """Settings from a YAML file and flags; flags win. Unknown names fail. `api_keys_file` may replace `api_keys`."""
    values: dict[str, Any] = {}
    if path is not None:
        import yaml

        loaded = yaml.safe_load(path.read_text(encoding="utf-8"))
        if not isinstance(loaded, dict):
            raise ValueError(f"{path}: expected a mapping of settings, found {type(loaded).__name__}")
        values |= loaded
    values |= {name: value for name, value in overrides.items() if value is not None}
    keys_file = values.pop("api_keys_file", None)
    if keys_file is not None:
        values["api_keys"] = read_api_keys(Path(keys_file))
    return EdgeSettings(**values)
