"""What the gateway can be told."""

from __future__ import annotations

import socket
from typing import ClassVar

from pydantic import Field

from quire_gateway.detokenizing import DetokenizeMode
from quire_servicekit.settings import CommaList, ServiceSettings


class GatewaySettings(ServiceSettings):
    """The public API of a suite."""

    service: ClassVar[str] = "gateway"

    listen: str = Field("127.0.0.1:8081", description="Address of the gRPC server: host:port or unix:/path.")
    tokenizers: CommaList = Field(
        ("127.0.0.1:8082",), min_length=1, description="Addresses of the tokenizer's replicas, with commas."
    )
    schedulers: CommaList = Field(
        ("127.0.0.1:8083",), min_length=1, description="Addresses of the schedulers, with commas."
    )
    gateway_id: str = Field(
        default_factory=socket.gethostname,
        description="Name of this process in the schedulers' logs and metrics.",
    )
    max_in_flight: int = Field(
        4096, ge=1, description="Sequences under way at most; beyond it clients get 429."
    )
    max_in_flight_per_tenant: int | None = Field(
        None, ge=1, description="The same for each tenant (metadata x-client-id); unset: no such limit."
    )
    accept_grace_s: float = Field(
        0.2,
        ge=0,
        description="How long a stream's first byte waits for the engine to take or refuse the request.",
    )
    resume_timeout_s: float = Field(
        30.0,
        ge=0,
        description="How long a request waits for an engine or tokenizer when there is none, in seconds.",
    )
    tokenize_timeout_s: float = Field(
        60.0, gt=0, description="How long one tokenizer replica may take for one call, in seconds."
    )
    detokenize: DetokenizeMode = Field(
        "auto",
        description="Who joins text: gateway (vocabularies of bytes only), tokenizer, or auto (the gateway if it can).",
    )
    unready_after_s: float = Field(
        2.0, ge=0, description="How long an engine or tokenizer may be gone before this reports NOT_SERVING."
    )
    coalesce_duty: float = Field(
        1.0,
        ge=0,
        description="Seconds that streams wait per second of writing, so that messages grow under load.",
    )
    coalesce_max_wait_ms: float = Field(20.0, ge=0, description="That wait is never longer, milliseconds.")
