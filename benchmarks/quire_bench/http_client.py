"""A lean HTTP/1.1 client over asyncio protocols: one keep-alive connection per object, one request at a time.

The load generator shares its processors with the server it measures, so it must cost little: bytes go to the caller as
they arrive, with the time of their arrival, and nothing else is kept. It knows HTTP and no API.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast
from urllib.parse import urlsplit

from quire_bench.sse import ChunkedDecoder, FramingError

MAX_HEAD_BYTES = 65536

OnBody = Callable[[bytes, float], None]  # body bytes, time.perf_counter() when they were read


@dataclass(slots=True)
class Response:
    """Head of a response whose body has been read to its end."""

    status: int
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where the server is: `http://host:port/prefix` taken apart."""

    host: str
    port: int
    prefix: str

    @classmethod
    def parse(cls, url: str) -> Endpoint:
        """Raises ValueError for anything but http://host[:port][/prefix]."""
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname:
            raise ValueError(f"url: expected http://host[:port][/prefix], got {url!r}")
        return cls(parts.hostname, parts.port or 80, parts.path.rstrip("/"))


class HttpConnection(asyncio.Protocol):
    """One connection. Make it with `connect`; after any exception it is closed and must not be used again."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._transport: asyncio.Transport | None = None
        self._head = b""
        self._response: Response | None = None
        self._decoder: ChunkedDecoder | None = None
        self._to_come = 0  # body bytes still to come; -1: until the server closes
        self._on_body: OnBody | None = None
        self._done: asyncio.Future[Response] | None = None
        self._keep_alive = True

    @classmethod
    async def connect(cls, endpoint: Endpoint) -> HttpConnection:
        """Open a connection; OSError when nobody listens."""
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(lambda: cls(endpoint), endpoint.host, endpoint.port)
        return connection

    @property
    def usable(self) -> bool:
        """True when another request may be sent."""
        return (
            self._transport is not None
            and not self._transport.is_closing()
            and self._keep_alive
            and self._done is None
        )

    async def request(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        on_body: OnBody | None = None,
        headers: dict[str, str] | None = None,
    ) -> Response:
        """Send one request and return when its response is complete; body bytes go to `on_body` as they arrive.

        Raises ConnectionError when the server closes too early and FramingError when it breaks the protocol. Cancelling
        closes the connection (that is how a client goes away).
        """
        if not self.usable or self._transport is None:
            raise ConnectionError("the connection is closed or busy")
        lines = [
            f"{method} {self._endpoint.prefix}{path} HTTP/1.1",
            f"Host: {self._endpoint.host}:{self._endpoint.port}",
        ]
        if body:
            lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        self._head, self._response, self._decoder, self._on_body = b"", None, None, on_body
        self._done = asyncio.get_running_loop().create_future()
        self._transport.write("\r\n".join([*lines, "", ""]).encode("ascii") + body)
        try:
            return await self._done
        except BaseException:
            self.close()
            raise
        finally:
            self._done = None

    def close(self) -> None:
        """Close at once; idempotent."""
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio.Protocol: connected."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transports are of classes of its own

    def data_received(self, data: bytes) -> None:
        """asyncio.Protocol: bytes came; an answer that makes no sense ends in the exception of `request`."""
        now = time.perf_counter()
        try:
            if self._response is None:
                data = self._read_head(data)
                if self._response is None:
                    return  # the head is not complete yet
            self._read_body(data, now)
        except (ValueError, LookupError, TypeError, AttributeError) as error:  # an answer that makes no sense
            self._fail(error)

    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio.Protocol: the connection is gone."""
        if self._response is not None and self._decoder is None and self._to_come < 0:
            self._finish()  # a body that is delimited by closing
        self._fail(
            exc or ConnectionResetError("the server closed the connection before the response was complete")
        )

    def _read_head(self, data: bytes) -> bytes:
        """Take in head bytes; returns what follows the head, once it is complete."""
        self._head += data
        end = self._head.find(b"\r\n\r\n")
        if end < 0:
            if len(self._head) > MAX_HEAD_BYTES:
                raise FramingError(f"response head longer than {MAX_HEAD_BYTES} bytes")
            return b""
        status_line, *lines = self._head[:end].decode("latin-1").split("\r\n")
        rest = self._head[end + 4 :]
        version, status, *_ = status_line.split(" ", 2)
        if not version.startswith("HTTP/1."):
            raise FramingError(f"bad status line {status_line[:60]!r}")
        if status.startswith("1"):  # an interim response: the real head follows
            self._head = b""
            return self._read_head(rest)
        headers = {
            name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)
        }
        self._keep_alive = headers.get("connection", "").lower() != "close" and version == "HTTP/1.1"
        if "chunked" in headers.get("transfer-encoding", "").lower():
            self._decoder = ChunkedDecoder()
            self._to_come = -1
        elif status in ("204", "304"):
            self._to_come = 0
        else:
            self._to_come = int(headers.get("content-length", "-1"))
            self._keep_alive = self._keep_alive and self._to_come >= 0
        self._response = Response(int(status), headers)
        return rest

    def _read_body(self, data: bytes, now: float) -> None:
        if self._decoder is not None:
            data = self._decoder.feed(data)
            finished = self._decoder.finished
        elif self._to_come >= 0:
            if len(data) > self._to_come:
                raise FramingError(f"{len(data) - self._to_come} bytes after the end of the body")
            self._to_come -= len(data)
            finished = self._to_come == 0
        else:
            finished = False
        if data and self._on_body is not None:
            self._on_body(data, now)
        if finished:
            self._finish()

    def _finish(self) -> None:
        if self._done is not None and not self._done.done() and self._response is not None:
            self._done.set_result(self._response)

    def _fail(self, error: Exception) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_exception(error)
