"""The JSON of chat answers that hold more than text: calls of tools and reasoning.

One job: events to chunks and messages. Answers that are text alone never come here (see dialect.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from quire_gateway.chat.events import (
    ChatEvent,
    ChoiceFinished,
    ReasoningDelta,
    TextDelta,
    TokensSampled,
    ToolArgumentsDelta,
    ToolCallStarted,
)
from quire_gateway.chat.stream import ChoiceResult
from quire_gateway.openai.dialect import Answer
from quire_gateway.sequences import Update

_NOTHING = Update("", [], [], 0)


@dataclass(slots=True)
class ChatAnswer:
    """Writes what an Answer's envelope carries."""

    answer: Answer
    #: Names under which reasoning is given.
    reasoning_names: tuple[str, ...] = ("reasoning",)
    #: Per choice: tokens whose chunk is still to come.
    _tokens: dict[int, TokensSampled] = field(default_factory=dict)

    def chunks(self, events: Sequence[ChatEvent]) -> bytes:
        """The chunks of events that came together."""
        parts = [self._chunk(event) for event in events]
        # Tokens that brought nothing else yet are told all the same.
        parts += [self._bare(index) for index in list(self._tokens)]
        return b"".join(parts)

    def _chunk(self, event: ChatEvent) -> bytes:
        index = event.choice_index
        if isinstance(event, TokensSampled):
            self._tokens[index] = event
            return b""
        if isinstance(event, TextDelta):
            return self.answer.delta(index, self._taken(index, event.text))
        if isinstance(event, ChoiceFinished):
            pending = self._bare(index) if index in self._tokens else b""
            return pending + self.answer.end(index, _end_of(event), _NOTHING)
        delta = self._delta_of(event)
        return self.answer.chunk(index, {"delta": delta}, self._taken(index, "")) if delta else b""

    def _bare(self, index: int) -> bytes:
        """The chunk of tokens without anything they came to."""
        update = self._taken(index, "")
        return self.answer.chunk(index, {"delta": {}}, update) if self.answer.tells_tokens else b""

    def _taken(self, index: int, text: str) -> Update:
        """The tokens that wait for a chunk of the choice, with a text."""
        tokens = self._tokens.pop(index, None)
        if tokens is None:
            return _NOTHING._replace(text=text)
        return Update(text, tokens.token_ids, tokens.logprobs, tokens.sampled_at_unix_us)

    def whole(self, results: Sequence[ChoiceResult]) -> bytes:
        """The answer of a call that is not streamed."""
        outputs = [Update(result.text, result.token_ids, result.logprobs, 0) for result in results]
        parsed = [{"message": self._message_of(result), **_end_of(result.finish)} for result in results]
        return self.answer.whole(outputs, parsed)

    def _delta_of(self, event: ChatEvent) -> dict[str, Any]:
        """The delta of an event that is neither text nor an end; empty if there is nothing to tell."""
        if isinstance(event, ReasoningDelta):
            return dict.fromkeys(self.reasoning_names, event.text)
        if isinstance(event, ToolCallStarted):
            function = {"name": event.name, "arguments": ""}
            call = {"index": event.call_index, "id": event.call_id, "type": "function", "function": function}
            return {"tool_calls": [call]}
        if isinstance(event, ToolArgumentsDelta):
            return {"tool_calls": [{"index": event.call_index, "function": {"arguments": event.text}}]}
        return {}

    def _message_of(self, result: ChoiceResult) -> dict[str, Any]:
        calls = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in result.tool_calls
        ]
        # Where there is a call, no text is null; otherwise an answer always has a text.
        content = result.text or (None if calls else "")
        message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
        if result.reasoning:
            message |= dict.fromkeys(self.reasoning_names, result.reasoning)
        if calls:
            message["tool_calls"] = calls
        return message


def _end_of(finish: ChoiceFinished) -> dict[str, Any]:
    stop_reason = finish.stop_text if finish.stop_text is not None else finish.stop_token_id
    return {"finish_reason": finish.reason.value, "stop_reason": stop_reason}
