"""A response as it is now.

One job: the response object, its output items, its status, and the numbers of its events. Knows no conversation.
"""

from __future__ import annotations

from typing import Any

import orjson

from quire_gateway.chat.stream import ChatUsage
from quire_gateway.openai.answers import kind_of
from quire_servicekit.errors import InternalError, QuireError

Event = dict[str, Any]

#: Statuses that do not change any more.
TERMINAL = frozenset({"completed", "incomplete", "failed", "cancelled"})


class ResponseState:
    """One response in the making. `response` is the object as clients see it."""

    def __init__(self, response: dict[str, Any]) -> None:
        """response: with everything that the request decides; status, output and usage are ours."""
        self.response = response | {"status": "in_progress", "output": [], "usage": None}
        self._num_events = 0

    @property
    def status(self) -> str:
        """Its word for how far it is."""
        return str(self.response["status"])

    @property
    def output(self) -> list[dict[str, Any]]:
        """Its items so far."""
        items: list[dict[str, Any]] = self.response["output"]
        return items

    def add_item(self, item: dict[str, Any]) -> int:
        """The item's index."""
        self.output.append(item)
        return len(self.output) - 1

    def event(self, name: str, /, **fields: Any) -> Event:
        """The next event."""
        number = self._num_events
        self._num_events += 1
        return {"type": name, "sequence_number": number, **fields}

    def opening(self, *, is_queued: bool = False) -> list[Event]:
        """created, and in_progress (behind queued, where it waited)."""
        if not is_queued:
            return [self._told("response.created"), self._told("response.in_progress")]
        self.response["status"] = "queued"
        events = [self._told("response.created"), self._told("response.queued")]
        self.response["status"] = "in_progress"
        return [*events, self._told("response.in_progress")]

    def add_usage(self, usage: ChatUsage) -> None:
        """Count one turn's tokens."""
        old = self.response["usage"] or _usage_object(ChatUsage(0, 0, 0, 0))
        new = _usage_object(usage)
        self.response["usage"] = {
            name: {key: old[name][key] + value[key] for key in value}
            if isinstance(value, dict)
            else old[name] + value
            for name, value in new.items()
        }

    def complete(self, now: float, incomplete_reason: str | None = None) -> Event:
        """The end of a response that ended well, or was cut."""
        if incomplete_reason is None:
            self.response |= {"status": "completed", "completed_at": int(now)}
            return self._told("response.completed")
        self.response |= {"status": "incomplete", "incomplete_details": {"reason": incomplete_reason}}
        return self._told("response.incomplete")

    def fail(self, error: Exception) -> Event:
        """The end of a response that could not be made. The text of an unknown cause is for the log."""
        is_known = isinstance(error, QuireError) and not isinstance(error, InternalError)
        code = {400: "invalid_prompt", 404: "invalid_prompt", 429: "rate_limit_exceeded"}.get(
            kind_of(error).status, "server_error"
        )
        message = str(error) if is_known else "The server had an error while processing your request."
        self._interrupt()
        self.response |= {"status": "failed", "error": {"code": code, "message": message}}
        return self._told("response.failed")

    def cancel(self) -> None:
        """The end of a response that nobody wants any more."""
        self._interrupt()
        self.response["status"] = "cancelled"

    def _interrupt(self) -> None:
        for item in self.output:
            if item.get("status") == "in_progress":
                item["status"] = "incomplete"

    def _told(self, name: str) -> Event:
        # Copied: the response goes on, the event says how it was.
        return self.event(name, response=orjson.loads(orjson.dumps(self.response)))


def event_bytes(event: Event) -> bytes:
    """The event as a server-sent event."""
    name: str = event["type"]
    return b"event: " + name.encode() + b"\ndata: " + orjson.dumps(event) + b"\n\n"


def _usage_object(usage: ChatUsage) -> dict[str, Any]:
    return {
        "input_tokens": usage.num_prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.num_cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.num_output_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.num_reasoning_tokens},
        "total_tokens": usage.num_prompt_tokens + usage.num_output_tokens,
    }
