"""Output items of a response and the events that build them.

One job: from the news of one conversation turn to items and numbered events. The whole response and its stream come
from the same place, so that they cannot differ. Knows neither tools' servers nor where a response is kept.
"""

from __future__ import annotations

import base64
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from quire_gateway.chat.events import (
    ChatEvent,
    ChatFinish,
    ChoiceFinished,
    ReasoningDelta,
    TextDelta,
    TokensSampled,
    ToolArgumentsDelta,
    ToolCallFinished,
    ToolCallStarted,
)
from quire_gateway.openai.logprobs import chat_logprobs
from quire_gateway.openai.response_state import Event, ResponseState
from quire_gateway.sequences import Vocabulary

#: By type of item: what stands before its id.
_PREFIXES = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "mcp_call": "mcp",
    "mcp_list_tools": "mcpl",
    "mcp_approval_request": "mcpr",
}


def new_item_id(kind: str) -> str:
    """An id as the dialect writes it."""
    return f"{_PREFIXES.get(kind, 'item')}_{uuid.uuid4().hex}"


class ServerTool(NamedTuple):
    """A tool of an MCP server."""

    label: str
    #: As the server calls it.
    name: str
    needs_approval: bool


class TurnWriter:
    """The items of one turn. servers: by name as the model knows it, the tools that are not the client's.

    Calls of tools that need approval become requests for it; other calls of MCP tools stay open in `server_calls`.
    """

    def __init__(
        self,
        state: ResponseState,
        *,
        vocabulary: Vocabulary = (),
        servers: Mapping[str, ServerTool] | None = None,
        has_logprobs: bool = False,
        has_encrypted_reasoning: bool = False,
    ) -> None:
        self._state, self._vocabulary = state, vocabulary
        self._servers = servers or {}
        self._has_logprobs, self._has_encrypted = has_logprobs, has_encrypted_reasoning
        self._item: dict[str, Any] | None = None
        self._index = 0
        self._pieces: list[str] = []
        self._logprobs: list[Any] = []
        self._pending: list[Any] = []
        #: Items of the turn, in order.
        self.items: list[dict[str, Any]] = []
        #: Index and item of each call that an MCP server is to answer.
        self.server_calls: list[tuple[int, dict[str, Any]]] = []
        self.finish: ChatFinish | None = None

    def write(self, event: ChatEvent) -> list[Event]:
        """The events of one of ours."""
        if isinstance(event, TextDelta):
            return self._piece("message", event.text)
        if isinstance(event, ReasoningDelta):
            return self._piece("reasoning", event.text)
        if isinstance(event, ToolCallStarted):
            return self.close() + self._open_call(event)
        if isinstance(event, ToolArgumentsDelta):
            return self._arguments(event.text)
        if isinstance(event, ToolCallFinished):
            return self.close()
        if isinstance(event, TokensSampled):
            if self._has_logprobs:
                self._pending += chat_logprobs(event.logprobs, self._vocabulary)["content"]
            return []
        assert isinstance(event, ChoiceFinished)
        self.finish = event.reason
        return self.close("incomplete" if event.reason is ChatFinish.LENGTH else "completed")

    # ---- Items -------------------------------------------------------------------------------------------------

    def _piece(self, kind: str, text: str) -> list[Event]:
        if not text:
            return []
        events = []
        if self._item is None or self._item["type"] != kind:
            events = self.close() + self._open_text(kind)
        self._pieces.append(text)
        if kind == "reasoning":
            self._pending.clear()
            return [*events, self._event("response.reasoning_text.delta", content_index=0, delta=text)]
        logprobs, self._pending = self._pending, []
        self._logprobs += logprobs
        fields = {"content_index": 0, "delta": text, "logprobs": logprobs}
        return [*events, self._event("response.output_text.delta", **fields)]

    def _open_text(self, kind: str) -> list[Event]:
        item: dict[str, Any] = {"id": new_item_id(kind), "type": kind, "status": "in_progress"}
        item |= {"role": "assistant", "content": []} if kind == "message" else {"summary": [], "content": []}
        part = _part(kind, "", [])
        return [*self._add(item), self._event("response.content_part.added", content_index=0, part=part)]

    def _open_call(self, event: ToolCallStarted) -> list[Event]:
        self._pending.clear()
        tool = self._servers.get(event.name)
        more: dict[str, Any]
        if tool is None:
            kind, more = "function_call", {"call_id": event.call_id, "status": "in_progress"}
        elif tool.needs_approval:
            kind, more = "mcp_approval_request", {"server_label": tool.label}
        else:
            kind = "mcp_call"
            more = {"server_label": tool.label, "output": None, "error": None, "status": "in_progress"}
        name = event.name if tool is None else tool.name
        item = {"id": new_item_id(kind), "type": kind, "name": name, "arguments": "", **more}
        events = self._add(item)
        if kind == "mcp_call":
            events.append(self._event("response.mcp_call.in_progress"))
        return events

    def _arguments(self, text: str) -> list[Event]:
        assert self._item is not None, "arguments belong to a call"
        if not text:
            return []
        self._pieces.append(text)
        names = {
            "function_call": "response.function_call_arguments.delta",
            "mcp_call": "response.mcp_call_arguments.delta",
        }
        name = names.get(self._item["type"])
        return [self._event(name, delta=text)] if name else []

    def _add(self, item: dict[str, Any]) -> list[Event]:
        self._item, self._pieces, self._logprobs = item, [], []
        self._index = self._state.add_item(item)
        self.items.append(item)
        # Copied: the event says how the item begins.
        event = self._state.event("response.output_item.added", output_index=self._index, item=dict(item))
        return [event]

    def close(self, status: str = "completed") -> list[Event]:
        """The end of the open item, if there is one. An MCP call stays open: its server has not answered yet."""
        item, text = self._item, "".join(self._pieces)
        if item is None:
            return []
        events = self._close_text(item, text) if "content" in item else self._close_call(item, text)
        if item["type"] == "mcp_call" and status == "completed":
            self.server_calls.append((self._index, item))
            self._item = None
            return events
        if "status" in item:
            item["status"] = status
        self._item = None
        return [*events, self._done(item)]

    def _close_text(self, item: dict[str, Any], text: str) -> list[Event]:
        kind = item["type"]
        part = _part(kind, text, self._logprobs)
        item["content"] = [part]
        if kind == "reasoning":
            if self._has_encrypted:
                item["encrypted_content"] = seal(text)
            done = self._event("response.reasoning_text.done", content_index=0, text=text)
        else:
            fields = {"content_index": 0, "text": text, "logprobs": self._logprobs}
            done = self._event("response.output_text.done", **fields)
        return [done, self._event("response.content_part.done", content_index=0, part=part)]

    def _close_call(self, item: dict[str, Any], text: str) -> list[Event]:
        item["arguments"] = text
        if item["type"] == "function_call":
            fields = {"arguments": text, "name": item["name"]}
            return [self._event("response.function_call_arguments.done", **fields)]
        if item["type"] == "mcp_call":
            return [self._event("response.mcp_call_arguments.done", arguments=text)]
        return []

    def _done(self, item: dict[str, Any]) -> Event:
        return self._state.event("response.output_item.done", output_index=self._index, item=item)

    def _event(self, name: str, /, **fields: Any) -> Event:
        assert self._item is not None, "an event belongs to an item"
        return self._state.event(name, item_id=self._item["id"], output_index=self._index, **fields)


def _part(kind: str, text: str, logprobs: Sequence[Any]) -> dict[str, Any]:
    if kind == "reasoning":
        return {"type": "reasoning_text", "text": text}
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": list(logprobs)}


def seal(text: str) -> str:
    """Reasoning as one opaque word for clients that hand it back: nothing here is secret from who wrote it."""
    return base64.urlsafe_b64encode(text.encode()).decode()


def unseal(word: str) -> str:
    """What `seal` was given. Raises ValueError for any other word."""
    return base64.b64decode(word.encode("ascii"), altchars=b"-_", validate=True).decode()
