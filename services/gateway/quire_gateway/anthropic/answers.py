"""The JSON of a message and of the events that build it.

One job: write it. A stream's events and the whole message come from the same place, so that they cannot differ.
"""

from __future__ import annotations

from typing import Any

import orjson

from quire_gateway.chat.events import (
    ChatEvent,
    ChatFinish,
    ChoiceFinished,
    ReasoningDelta,
    TextDelta,
    ToolArgumentsDelta,
    ToolCallStarted,
)
from quire_gateway.chat.stream import ChatStream

PING = b'event: ping\ndata: {"type": "ping"}\n\n'

_STOP_REASONS = {
    ChatFinish.STOP: "end_turn",
    ChatFinish.LENGTH: "max_tokens",
    ChatFinish.TOOL_CALLS: "tool_use",
}
#: By kind of block: where its delta goes, and what the delta is called.
_DELTAS = {
    "text": ("text", "text_delta"),
    "thinking": ("thinking", "thinking_delta"),
    "tool_use": ("partial_json", "input_json_delta"),
}


class MessageWriter:
    """One message in the making."""

    def __init__(self, stream: ChatStream) -> None:
        self._stream = stream
        self._blocks: list[dict[str, Any]] = []
        #: Per block: its text, or the JSON text of its input.
        self._texts: list[list[str]] = []
        self._is_open = False
        self._stop_reason: str | None = None
        self._stop_text: str | None = None

    # ---- Events ------------------------------------------------------------------------------------------------

    def opening(self) -> bytes:
        """message_start, and the ping that follows it."""
        message = self._message([]) | {"usage": self._usage() | {"output_tokens": 0}}
        return _event("message_start", {"message": message}) + PING

    def write(self, event: ChatEvent) -> bytes:
        """The events of one of ours."""
        if isinstance(event, TextDelta):
            return self._piece("text", event.text)
        if isinstance(event, ReasoningDelta):
            return self._piece("thinking", event.text)
        if isinstance(event, ToolCallStarted):
            block = {"type": "tool_use", "id": event.call_id, "name": event.name, "input": {}}
            return self._close() + self._open(block)
        if isinstance(event, ToolArgumentsDelta):
            return self._delta("tool_use", event.text)
        if isinstance(event, ChoiceFinished):
            self._stop_text = event.stop_text
            stopped = event.stop_text is not None and event.reason is ChatFinish.STOP
            self._stop_reason = "stop_sequence" if stopped else _STOP_REASONS[event.reason]
        return b""

    def closing(self) -> bytes:
        """The end of the last block, message_delta and message_stop."""
        delta = {"stop_reason": self._stop_reason, "stop_sequence": self._stop_text}
        return (
            self._close()
            + _event("message_delta", {"delta": delta, "usage": self._usage()})
            + _event("message_stop", {})
        )

    # ---- The whole message -------------------------------------------------------------------------------------

    def whole(self) -> bytes:
        """The message, after every event has been written."""
        content = [
            _filled(block, "".join(texts)) for block, texts in zip(self._blocks, self._texts, strict=True)
        ]
        return orjson.dumps(self._message(content) | {"usage": self._usage()})

    def _message(self, content: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": f"msg_{self._stream.id}",
            "type": "message",
            "role": "assistant",
            "model": self._stream.model.id,
            "content": content,
            "stop_reason": self._stop_reason,
            "stop_sequence": self._stop_text,
        }

    def _usage(self) -> dict[str, Any]:
        usage = self._stream.usage
        return {
            # What the prefix cache had is counted apart.
            "input_tokens": usage.num_prompt_tokens - usage.num_cached_tokens,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": usage.num_cached_tokens,
            "output_tokens": usage.num_output_tokens,
            "output_tokens_details": {"thinking_tokens": usage.num_reasoning_tokens},
        }

    # ---- Blocks ------------------------------------------------------------------------------------------------

    def _piece(self, kind: str, text: str) -> bytes:
        """A piece of text or thinking: of the open block, if it is one of that kind, else of a new one."""
        if not text:
            return b""
        if self._is_open and self._blocks[-1]["type"] == kind:
            return self._delta(kind, text)
        block = {"type": "thinking", "thinking": "", "signature": ""}
        if kind == "text":
            block = {"type": "text", "text": ""}
        return self._close() + self._open(block) + self._delta(kind, text)

    def _open(self, block: dict[str, Any]) -> bytes:
        self._blocks.append(block)
        self._texts.append([])
        self._is_open = True
        return _event("content_block_start", {"index": len(self._blocks) - 1, "content_block": block})

    def _delta(self, kind: str, text: str) -> bytes:
        self._texts[-1].append(text)
        field, name = _DELTAS[kind]
        delta = {"type": name, field: text}
        return _event("content_block_delta", {"index": len(self._blocks) - 1, "delta": delta})

    def _close(self) -> bytes:
        if not self._is_open:
            return b""
        self._is_open = False
        return _event("content_block_stop", {"index": len(self._blocks) - 1})


def _event(name: str, fields: dict[str, Any]) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + orjson.dumps({"type": name} | fields) + b"\n\n"


def _filled(block: dict[str, Any], text: str) -> dict[str, Any]:
    """The block with all it has got."""
    if block["type"] != "tool_use":
        return block | {block["type"]: text}
    try:
        arguments = orjson.loads(text or b"{}")
    except orjson.JSONDecodeError:
        # Cut short by max_tokens, as the stop reason says: half an object is none.
        arguments = {}
    return block | {"input": arguments if isinstance(arguments, dict) else {}}
