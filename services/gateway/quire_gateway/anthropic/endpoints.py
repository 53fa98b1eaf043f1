"""The endpoints: bytes of a request in, an async iterator of a head and the bytes of its answer out.

One job: the order of things. Nothing here knows gRPC, so any HTTP server could serve these functions. An error before
the head is an answer of its own with the right status; after the head it is an event in the stream.
"""

from __future__ import annotations

import dataclasses

import orjson

from quire_gateway.anthropic.answers import PING, MessageWriter
from quire_gateway.anthropic.errors import error_body, error_event, error_head
from quire_gateway.anthropic.parameters import NAMES
from quire_gateway.anthropic.requests import DOMAIN_NAMES, CountRequest, MessagesRequest
from quire_gateway.chat.runner import ChatRunner
from quire_gateway.chat.stream import ChatStream
from quire_gateway.http_answer import EVENT_STREAM, Head, Pieces
from quire_gateway.quiet import with_pauses
from quire_gateway.request_body import parse_body
from quire_gateway.requests import CallInfo
from quire_servicekit.errors import QuireError
from quire_servicekit.logging import get_logger

log = get_logger("anthropic")

#: Where tokens are counted, what only a generation needs changes nothing.
COUNT_NAMES = dataclasses.replace(
    NAMES,
    unsupported=NAMES.unsupported | (set(MessagesRequest.model_fields) - set(CountRequest.model_fields)),
)


class AnthropicEndpoints:
    """Serves the dialect on a ChatRunner."""

    def __init__(
        self, runner: ChatRunner, *, accept_grace_s: float = 0.2, ping_interval_s: float = 10.0
    ) -> None:
        """accept_grace_s: how long a stream's head waits for the engine to take or refuse the request.

        ping_interval_s: a stream that has nothing to say for so long says that it is alive.
        """
        self._runner, self._accept_grace_s, self._ping_interval_s = runner, accept_grace_s, ping_interval_s

    async def messages(self, body: bytes, call: CallInfo) -> Pieces:
        """POST /v1/messages."""
        has_head = False
        try:
            with self._runner.generator.reading("messages", call):
                request = parse_body(body, MessagesRequest, NAMES)
                chat = request.to_call()
            async with self._runner.run(chat, call, route="messages", names=DOMAIN_NAMES) as stream:
                answer = self._stream(stream) if request.stream else self._whole(stream)
                async for piece in answer:
                    has_head = True
                    yield piece
        except Exception as error:  # noqa: BLE001 - whatever it is, the client gets an answer in its dialect
            for piece in _error_pieces(error, has_head, call):
                yield piece

    async def count_tokens(self, body: bytes, call: CallInfo) -> Pieces:
        """POST /v1/messages/count_tokens."""
        try:
            with self._runner.generator.reading("count_tokens", call):
                chat = parse_body(body, CountRequest, COUNT_NAMES).to_call()
            count = await self._runner.count_tokens(chat, names=DOMAIN_NAMES)
            pieces: list[Head | bytes] = [Head(), orjson.dumps({"input_tokens": count})]
        except Exception as error:  # noqa: BLE001 - as above
            pieces = _error_pieces(error, False, call)
        for piece in pieces:
            yield piece

    async def _stream(self, stream: ChatStream) -> Pieces:
        """Events, written as output comes: everything that is there goes into one piece."""
        await stream.wait_accepted(self._accept_grace_s)
        yield Head(200, EVENT_STREAM)
        writer = MessageWriter(stream)
        yield writer.opening()
        async for events in with_pauses(stream.events(), self._ping_interval_s):
            piece = PING if events is None else b"".join(writer.write(event) for event in events)
            if piece:
                yield piece
        yield writer.closing()

    async def _whole(self, stream: ChatStream) -> Pieces:
        writer = MessageWriter(stream)
        async for events in stream.events():
            for event in events:
                writer.write(event)
        body = writer.whole()
        yield Head()
        yield body


def _error_pieces(error: Exception, has_head: bool, call: CallInfo) -> list[Head | bytes]:
    """The rest of an answer that failed."""
    if not isinstance(error, QuireError):
        log.exception("request failed", reason=type(error).__name__)
    request_id = call.client_request_id
    if has_head:
        return [error_event(error, request_id)]
    return [error_head(error), error_body(error, request_id)]
