"""An endpoint's answer as google.api.HttpBody messages.

One job: heads become content types and metadata. Pieces are written as bytes that are serialised already: a message
object per piece would cost a third of the whole.
"""

from __future__ import annotations

from contextlib import aclosing
from typing import Any

from quire_gateway.http_answer import Head, Pieces

_CONTENT_TYPE_TAG, _DATA_TAG = b"\x0a", b"\x12"


def http_body(data: bytes, content_type: str = "") -> bytes:
    """A serialised google.api.HttpBody."""
    body = _DATA_TAG + _varint(len(data)) + data if data else b""
    if not content_type:
        return body
    encoded = content_type.encode()
    return _CONTENT_TYPE_TAG + _varint(len(encoded)) + encoded + body


def _varint(value: int) -> bytes:
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


async def write_pieces(pieces: Pieces, context: Any) -> None:
    """Write a whole answer. The pieces are closed on every path, so that a client that goes away aborts its request."""
    content_type = ""
    async with aclosing(pieces):  # type: ignore[type-var]
        async for piece in pieces:
            if isinstance(piece, bytes):
                await context.write(http_body(piece, content_type))
                content_type = ""
            else:
                await send_head(context, piece)
                content_type = piece.content_type
    if content_type:
        # A body of no bytes (an empty file) has a type all the same.
        await context.write(http_body(b"", content_type))


async def send_head(context: Any, head: Head) -> None:
    """The HTTP status as metadata, which the edge turns into the real one; 200 needs none."""
    if head.status == 200:
        return
    metadata = [("x-http-status", str(head.status))]
    if head.retry_after_s is not None:
        metadata.append(("retry-after", str(head.retry_after_s)))
    await context.send_initial_metadata(tuple(metadata))
