"""Incremental parsers for what a streaming HTTP/1.1 response carries: chunked transfer coding and server-sent events.

Pure functions of bytes, free of sockets and of any API dialect. Both accept any split of the input.
"""

from __future__ import annotations


class FramingError(ValueError):
    """The peer broke HTTP's framing; the connection cannot be used any longer."""


class ChunkedDecoder:
    """Undoes `Transfer-Encoding: chunked`. `finished` turns true after the last chunk and its trailers."""

    def __init__(self) -> None:
        self.finished = False
        self._buffer = b""
        self._in_chunk = 0  # bytes of the current chunk still to come, its final CRLF included
        self._in_trailers = False

    def feed(self, data: bytes) -> bytes:
        """The body bytes that `data` completes. Raises FramingError on a bad chunk header or on bytes after the end."""
        buffer = self._buffer + data if self._buffer else data
        parts: list[bytes] = []
        at = 0
        while at < len(buffer) and not self.finished:
            if self._in_chunk:
                at = self._take_chunk(buffer, at, parts)
                continue
            end = buffer.find(b"\r\n", at)
            if end < 0:
                break
            line = buffer[at:end]
            at = end + 2
            self._header_line(line)
        self._buffer = buffer[at:]
        if self.finished and self._buffer:
            raise FramingError(f"{len(self._buffer)} bytes after the last chunk")
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _take_chunk(self, buffer: bytes, at: int, parts: list[bytes]) -> int:
        available = len(buffer) - at
        if available >= self._in_chunk:
            stop = at + self._in_chunk
            if self._in_chunk > 2:
                parts.append(buffer[at : stop - 2])
            if buffer[stop - 1] != 0x0A:
                raise FramingError("a chunk does not end in CRLF")
            self._in_chunk = 0
            return stop
        # The last two bytes of the count are the CRLF, which must not be handed out as body.
        body = min(available, self._in_chunk - 2)
        if body > 0:
            parts.append(buffer[at : at + body])
        self._in_chunk -= available
        return len(buffer)

    def _header_line(self, line: bytes) -> None:
        if self._in_trailers:
            self.finished = not line
            return
        try:
            size = int(line.split(b";", 1)[0], 16)
        except ValueError as error:
            raise FramingError(f"bad chunk size line {line[:40]!r}") from error
        if size:
            self._in_chunk = size + 2
        else:
            self._in_trailers = True


class SseParser:
    """Splits a `text/event-stream` body into the data of its events; comments and events without data are dropped."""

    def __init__(self) -> None:
        self._buffer = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Data payloads of the events that `data` completes, in order (several data lines are joined by newlines)."""
        buffer = self._buffer + data if self._buffer else data
        held = b""
        if b"\r" in buffer:  # any of the three line ends is legal; a last CR may be half of a CRLF
            if buffer.endswith(b"\r"):
                buffer, held = buffer[:-1], b"\r"
            buffer = buffer.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *blocks, rest = buffer.split(b"\n\n")
        self._buffer = rest + held
        payloads = []
        for block in blocks:
            payload = _event_data(block)
            if payload is not None:
                payloads.append(payload)
        return payloads


def _event_data(block: bytes) -> bytes | None:
    if block.startswith(b"data: ") and b"\n" not in block:  # what every server sends
        return block[6:]
    lines = []
    for line in block.split(b"\n"):
        name, _, value = line.partition(b":")
        if name == b"data":
            lines.append(value[1:] if value.startswith(b" ") else value)
    return b"\n".join(lines) if lines else None
