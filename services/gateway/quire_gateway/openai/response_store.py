"""Responses that clients come back to.

One job: keep them, for the tenant that made them, within a number and a size; the oldest goes first. Knows nothing of
how a response is made.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import orjson

from quire_gateway.openai.response_state import TERMINAL, Event, ResponseState, event_bytes
from quire_servicekit.errors import UnknownRequest

Item = dict[str, Any]


@dataclass(eq=False, slots=True)
class StoredResponse:
    """One response, what it was made from, and who makes it if it is still in the making."""

    state: ResponseState
    tenant: str
    #: The request's own items.
    input_items: list[Item]
    #: Everything before its output: the conversation of the responses before it, and its own items.
    context: list[Item]
    #: Makes a background response.
    task: asyncio.Task[None] | None = None
    #: Of a background response: its events so far, by number.
    events: list[bytes] = field(default_factory=list)
    num_bytes: int = 0
    #: Its client wants to hear nothing more of it.
    is_forgotten: bool = False
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def is_terminal(self) -> bool:
        """Nothing will change."""
        return self.state.status in TERMINAL

    def append(self, events: list[Event]) -> None:
        """More events of a background response."""
        for event in events:
            self.events.append(event_bytes(event))
        self.wake()

    def wake(self) -> None:
        """Tell followers that something changed."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def follow(self, starting_after: int | None = None) -> AsyncIterator[bytes]:
        """The events behind that number, and those to come, until the response is complete."""
        position = 0 if starting_after is None else starting_after + 1
        while True:
            changed = self._changed
            if position < len(self.events):
                yield b"".join(self.events[position:])
                position = len(self.events)
            elif self.is_terminal:
                return
            else:
                await changed.wait()


class ResponseStore:
    """A bounded number of responses. One event loop."""

    def __init__(self, *, max_responses: int, max_bytes: int) -> None:
        """max_responses: 0 keeps none."""
        self.max_responses, self._max_bytes = max_responses, max_bytes
        self._responses: dict[str, StoredResponse] = {}
        self.num_bytes = 0

    @property
    def is_on(self) -> bool:
        """Whether anything is kept."""
        return self.max_responses > 0

    @property
    def num_running(self) -> int:
        """Background responses that are being made."""
        return sum(not stored.is_terminal for stored in self._responses.values())

    def __len__(self) -> int:
        return len(self._responses)

    def put(self, stored: StoredResponse) -> None:
        """Keep a response, or note that it has grown. The oldest ones that are complete make room."""
        response_id = stored.state.response["id"]
        self.num_bytes -= stored.num_bytes if response_id in self._responses else 0
        stored.num_bytes = (
            len(orjson.dumps(stored.state.response))
            + len(orjson.dumps(stored.input_items))
            + sum(map(len, stored.events))
        )
        self.num_bytes += stored.num_bytes
        self._responses[response_id] = stored
        self._make_room()

    def get(self, response_id: str, tenant: str) -> StoredResponse:
        """The response. Raises UnknownRequest, also for another tenant's."""
        stored = self._responses.get(response_id)
        if stored is None or stored.tenant != tenant:
            raise UnknownRequest(response_id, message=f"Response with id '{response_id}' not found.")
        return stored

    def remove(self, response_id: str, tenant: str) -> StoredResponse:
        """Forget the response and hand it out. Raises as `get` does."""
        stored = self.get(response_id, tenant)
        del self._responses[response_id]
        self.num_bytes -= stored.num_bytes
        return stored

    def tasks(self) -> list[asyncio.Task[None]]:
        """Those of background responses."""
        return [stored.task for stored in self._responses.values() if stored.task is not None]

    def _make_room(self) -> None:
        for response_id, stored in list(self._responses.items()):
            if len(self._responses) <= self.max_responses and self.num_bytes <= self._max_bytes:
                return
            # One that is being made stays: who made it waits for it.
            if stored.is_terminal:
                self.num_bytes -= stored.num_bytes
                del self._responses[response_id]
