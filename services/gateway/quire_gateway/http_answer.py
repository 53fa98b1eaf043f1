"""What an HTTP answer begins with, whatever the dialect.

One job: the two kinds of things an endpoint yields. Knows neither gRPC nor a dialect's bodies.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

JSON = "application/json"
EVENT_STREAM = "text/event-stream"


@dataclass(frozen=True, slots=True)
class Head:
    """What an HTTP answer begins with; the body's bytes follow."""

    status: int = 200
    content_type: str = JSON
    retry_after_s: int | None = None


#: What an endpoint yields: one Head, then the pieces of the body.
Pieces = AsyncIterator[Head | bytes]
