"""The endpoints of the Responses API: bytes or fields of a request in, a head and the bytes of its answer out.

One job: create, find, cancel and forget. Nothing here knows gRPC. An error before the head is an answer of its own with
the right status; after the head it is an event in the stream.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
import uuid
from collections.abc import Callable
from contextlib import aclosing

import orjson

from quire_gateway.chat.runner import ChatRunner
from quire_gateway.http_answer import EVENT_STREAM, Head, Pieces
from quire_gateway.mcp_servers import McpServers
from quire_gateway.openai.answers import error_body, error_head
from quire_gateway.openai.pages import ordered, page
from quire_gateway.openai.response_input import Item, read_items
from quire_gateway.openai.response_mcp import McpToolbox
from quire_gateway.openai.response_request import NAMES, ResponseRequest
from quire_gateway.openai.response_run import ResponseRun
from quire_gateway.openai.response_state import ResponseState, event_bytes
from quire_gateway.openai.response_store import ResponseStore, StoredResponse
from quire_gateway.request_body import parse_body
from quire_gateway.requests import CallInfo
from quire_servicekit.errors import InvalidRequest, QueueFull, QuireError, Unsupported
from quire_servicekit.logging import get_logger

log = get_logger("responses")

MAX_PAGE = 100


class ResponseEndpoints:
    """Serves the Responses API on a ChatRunner. Close it: background responses end with the process."""

    def __init__(
        self,
        runner: ChatRunner,
        store: ResponseStore,
        servers: McpServers,
        *,
        accept_grace_s: float = 0.2,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._runner, self._store, self._servers = runner, store, servers
        self._accept_grace_s, self._clock = accept_grace_s, clock

    async def close(self) -> None:
        """End background responses."""
        tasks = self._store.tasks()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # ---- Create ------------------------------------------------------------------------------------------------

    async def create(self, body: bytes, call: CallInfo) -> Pieces:
        """POST /v1/responses."""
        try:
            with self._runner.generator.reading("responses", call):
                request = parse_body(body, ResponseRequest, NAMES)
                stored = self._begin(request, call)
                run = self._run(request, stored, call)
            answer = self._background(request, stored, run) if request.background else None
            if answer is None:
                answer = self._stream(stored, run) if request.stream else self._whole(stored, run)
            async with aclosing(answer):  # type: ignore[type-var]
                async for piece in answer:
                    yield piece
        except Exception as error:  # noqa: BLE001 - whatever it is, the client gets an answer in its dialect
            for piece in _error_pieces(error):
                yield piece

    def _begin(self, request: ResponseRequest, call: CallInfo) -> StoredResponse:
        """The response as it begins. Raises for what the request cannot have."""
        request.check()
        self._refuse_without_store(request)
        items = read_items(request.input)
        context = [*self._before(request, call), *items]
        response_id, now = f"resp_{uuid.uuid4().hex}", int(self._clock())
        is_stored = self._store.is_on and request.store is not False
        response = request.response(response_id, now, request.model, is_stored=is_stored)
        return StoredResponse(ResponseState(response), call.tenant, items, context)

    def _refuse_without_store(self, request: ResponseRequest) -> None:
        if self._store.is_on:
            return
        asked = {
            "store": request.store,
            "background": request.background,
            "previous_response_id": request.previous_response_id is not None,
        }
        for name, is_asked in asked.items():
            if is_asked:
                raise Unsupported(
                    name,
                    message=f"{name} is not supported: this server keeps no responses (max_stored_responses)",
                )

    def _before(self, request: ResponseRequest, call: CallInfo) -> list[Item]:
        """The conversation that the request goes on from."""
        if request.previous_response_id is None:
            return []
        try:
            previous = self._store.get(request.previous_response_id, call.tenant)
        except QuireError as error:
            raise InvalidRequest(
                "previous_response_id",
                message=f"Previous response with id '{request.previous_response_id}' not found.",
                code="previous_response_not_found",
            ) from error
        if previous.state.status not in ("completed", "incomplete"):
            raise InvalidRequest("previous_response_id", "of a complete response", previous.state.status)
        return [*previous.context, *previous.state.output]

    def _run(self, request: ResponseRequest, stored: StoredResponse, call: CallInfo) -> ResponseRun:
        functions, servers = request.own_tools()
        toolbox = McpToolbox(
            self._servers,
            servers,
            taken=[tool.name for tool in functions],
            max_calls=request.max_tool_calls,
        )
        # The client of a background response does not wait for it.
        call = dataclasses.replace(call, timeout_s=None) if request.background else call
        return ResponseRun(
            self._runner,
            request,
            call,
            stored.state,
            list(stored.context),
            toolbox,
            accept_grace_s=self._accept_grace_s,
            clock=self._clock,
        )

    async def _whole(self, stored: StoredResponse, run: ResponseRun) -> Pieces:
        async for _ in run.events():
            pass
        if run.error is not None:
            raise run.error
        self._keep(stored)
        yield Head()
        yield orjson.dumps(stored.state.response)

    async def _stream(self, stored: StoredResponse, run: ResponseRun) -> Pieces:
        has_head = False
        async with aclosing(run.events()) as lists:  # type: ignore[type-var]
            async for events in lists:
                if not has_head:
                    has_head = True
                    yield Head(200, EVENT_STREAM)
                if stored.is_terminal:
                    # Kept before the client knows its end, and can ask for it.
                    self._keep(stored)
                yield b"".join(map(event_bytes, events))

    def _keep(self, stored: StoredResponse) -> None:
        if stored.state.response["store"]:
            self._store.put(stored)

    # ---- Background --------------------------------------------------------------------------------------------

    async def _background(self, request: ResponseRequest, stored: StoredResponse, run: ResponseRun) -> Pieces:
        if self._store.num_running >= self._store.max_responses:
            raise QueueFull(
                message=f"too many background responses: {self._store.num_running}; try again later"
            )
        stored.state.response["status"] = "queued"
        stored.task = asyncio.get_running_loop().create_task(
            self._make(stored, run), name="background response"
        )
        self._store.put(stored)
        if request.stream:
            yield Head(200, EVENT_STREAM)
            async with aclosing(stored.follow()) as pieces:  # type: ignore[type-var]
                async for piece in pieces:
                    yield piece
            return
        yield Head()
        yield orjson.dumps(stored.state.response)

    async def _make(self, stored: StoredResponse, run: ResponseRun) -> None:
        try:
            async for events in run.events():
                stored.append(events)
        except asyncio.CancelledError:
            stored.state.cancel()
        except Exception as error:
            if not isinstance(error, QuireError):
                log.exception("background response failed", reason=type(error).__name__)
            stored.append([*stored.state.opening(is_queued=True), stored.state.fail(error)])
        finally:
            stored.task = None
            stored.wake()
            if not stored.is_forgotten:
                self._store.put(stored)

    # ---- Those that are kept -----------------------------------------------------------------------------------

    async def get(
        self, response_id: str, call: CallInfo, *, stream: bool = False, starting_after: int | None = None
    ) -> Pieces:
        """GET /v1/responses/{response_id}."""
        try:
            stored = self._store.get(response_id, call.tenant)
            if stream and not stored.state.response["background"]:
                raise InvalidRequest("stream", message="only a background response can be streamed again")
        except QuireError as error:
            for piece in _error_pieces(error):
                yield piece
            return
        if not stream:
            yield Head()
            yield orjson.dumps(stored.state.response)
            return
        yield Head(200, EVENT_STREAM)
        async with aclosing(stored.follow(starting_after)) as pieces:  # type: ignore[type-var]
            async for event_piece in pieces:
                yield event_piece

    async def cancel(self, response_id: str, call: CallInfo) -> Pieces:
        """POST /v1/responses/{response_id}/cancel."""
        try:
            stored = self._store.get(response_id, call.tenant)
            if not stored.state.response["background"]:
                raise InvalidRequest("response_id", message="Only background responses can be cancelled.")
            await _end(stored)
            pieces: list[Head | bytes] = [Head(), orjson.dumps(stored.state.response)]
        except QuireError as error:
            pieces = _error_pieces(error)
        for piece in pieces:
            yield piece

    async def delete(self, response_id: str, call: CallInfo) -> Pieces:
        """DELETE /v1/responses/{response_id}."""
        try:
            stored = self._store.remove(response_id, call.tenant)
            stored.is_forgotten = True
            await _end(stored)
            document = {"id": response_id, "object": "response", "deleted": True}
            pieces: list[Head | bytes] = [Head(), orjson.dumps(document)]
        except QuireError as error:
            pieces = _error_pieces(error)
        for piece in pieces:
            yield piece

    async def input_items(
        self, response_id: str, call: CallInfo, *, limit: int = 20, order: str = "desc", after: str = ""
    ) -> Pieces:
        """GET /v1/responses/{response_id}/input_items."""
        try:
            stored = self._store.get(response_id, call.tenant)
            # Kept as they were given: the oldest first.
            items = page(ordered(stored.input_items, order), limit, after, max_limit=MAX_PAGE)
            pieces: list[Head | bytes] = [Head(), items]
        except QuireError as error:
            pieces = _error_pieces(error)
        for piece in pieces:
            yield piece


async def _end(stored: StoredResponse) -> None:
    """End a response that is being made, and wait for that."""
    task = stored.task
    if task is not None:
        task.cancel()
        await asyncio.wait((task,))
    if not stored.is_terminal:
        # It had not begun.
        stored.task = None
        stored.state.cancel()
        stored.wake()


def _error_pieces(error: Exception) -> list[Head | bytes]:
    if not isinstance(error, QuireError):
        log.exception("request failed", reason=type(error).__name__)
    return [error_head(error), error_body(error)]
