"""One choice's output, from text as the model wrote it to events.

One job: run the parsers and number the calls. Knows neither gRPC nor any dialect's JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from quire_gateway.chat.events import (
    ChatEvent,
    ChatFinish,
    ChoiceFinished,
    ReasoningDelta,
    TextDelta,
    ToolArgumentsDelta,
    ToolCallFinished,
    ToolCallStarted,
)
from quire_gateway.chat.span_counter import SpanCounter
from quire_gateway.chat.special_texts import Cleaner, SpecialTexts
from quire_gateway.parsing.reasoning.base import Reasoning, ReasoningParser, ReasoningPart
from quire_gateway.parsing.tools.base import CallArguments, CallStarted, ParsedCall, Text, ToolParser
from quire_gateway.sequences import Finish, FinishReason

_FINISHES = {FinishReason.STOP: ChatFinish.STOP, FinishReason.LENGTH: ChatFinish.LENGTH}


class ChoiceParser:
    """Without parsers all output is text."""

    __slots__ = ("index", "is_done")

    def __init__(self, index: int) -> None:
        self.index = index
        self.is_done = False

    @property
    def num_reasoning_tokens(self) -> int:
        """Output tokens in which the model was thinking."""
        return 0

    @property
    def can_reason(self) -> bool:
        """Whether there can be reasoning in it."""
        return False

    def push(self, text: str, token_ids: list[int]) -> list[ChatEvent]:
        """The events of new output. text may lag behind its tokens."""
        return [TextDelta(self.index, text)] if text else []

    def finish(self, finish: Finish) -> list[ChatEvent]:
        """The last events."""
        self.is_done = True
        return [ChoiceFinished(self.index, _FINISHES[finish.reason], finish.stop_text, finish.stop_token_id)]


@dataclass(slots=True, kw_only=True)
class Parsers:
    """What one choice's output is taken apart with; None: it holds no such thing."""

    new_call_id: Callable[[], str]
    tools: ToolParser | None = None
    reasoning: ReasoningParser | None = None
    counter: SpanCounter | None = None
    #: Special tokens that were kept for the parsers and have to be taken out.
    special: SpecialTexts | None = None
    #: False: thinking is left out of the events.
    is_reasoning_included: bool = True
    #: False: the choice ends with its first call.
    has_parallel_calls: bool = True


class ParsedChoice(ChoiceParser):
    """First what is thought is told from what is said, then calls from text, so that no thought is ever a call."""

    __slots__ = ("_events", "_num_calls", "_parsers", "_text", "_thought")

    def __init__(self, index: int, parsers: Parsers) -> None:
        super().__init__(index)
        self._parsers = parsers
        self._num_calls = 0
        self._events: list[ChatEvent] = []
        self._text = Cleaner(parsers.special) if parsers.special is not None else None
        self._thought = Cleaner(parsers.special) if parsers.special is not None else None

    @property
    def num_reasoning_tokens(self) -> int:
        """Output tokens in which the model was thinking."""
        return self._parsers.counter.num_tokens if self._parsers.counter is not None else 0

    @property
    def can_reason(self) -> bool:
        """Whether there can be reasoning in it."""
        return self._parsers.reasoning is not None

    def push(self, text: str, token_ids: list[int]) -> list[ChatEvent]:
        """The events of new output. text may lag behind its tokens."""
        if self._parsers.counter is not None:
            self._parsers.counter.push(token_ids)
        if text:
            reasoning = self._parsers.reasoning
            if reasoning is None:
                self._say(text)
            else:
                self._parts(reasoning.push(text))
        return self._taken()

    def finish(self, finish: Finish) -> list[ChatEvent]:
        """The last events."""
        if self.is_done:
            return []
        parsers = self._parsers
        if parsers.reasoning is not None:
            self._parts(parsers.reasoning.finish())
        if parsers.tools is not None:
            self._calls(parsers.tools.finish())
        if not self.is_done:
            self._flush()
            reason = _FINISHES[finish.reason]
            if self._num_calls and reason is ChatFinish.STOP:
                reason = ChatFinish.TOOL_CALLS
            self._end(ChoiceFinished(self.index, reason, finish.stop_text, finish.stop_token_id))
        return self._taken()

    # ---- From parts to events ----------------------------------------------------------------------------------

    def _parts(self, parts: Iterable[ReasoningPart]) -> None:
        for part in parts:
            if not isinstance(part, Reasoning):
                self._say(part.text)
            elif self._parsers.is_reasoning_included:
                self._think(self._thought.push(part.text) if self._thought else part.text)

    def _say(self, text: str) -> None:
        if self._parsers.tools is None:
            self._write(self._text.push(text) if self._text else text)
        else:
            self._calls(self._parsers.tools.push(text))

    def _calls(self, parsed: Iterable[ParsedCall]) -> None:
        for part in parsed:
            if self.is_done:
                return
            if isinstance(part, Text):
                self._write(self._text.push(part.text) if self._text else part.text)
            elif isinstance(part, CallStarted):
                self._flush()
                call_id = self._parsers.new_call_id()
                self._events.append(ToolCallStarted(self.index, self._num_calls, call_id, part.name))
                self._num_calls += 1
            elif isinstance(part, CallArguments):
                self._add(ToolArgumentsDelta(self.index, self._num_calls - 1, part.text))
            else:
                self._events.append(ToolCallFinished(self.index, self._num_calls - 1))
                if not self._parsers.has_parallel_calls:
                    self._end(ChoiceFinished(self.index, ChatFinish.TOOL_CALLS))

    def _think(self, text: str) -> None:
        if text:
            self._add(ReasoningDelta(self.index, text))

    def _write(self, text: str) -> None:
        if self._thought is not None:
            self._think(self._thought.flush())
        if text:
            self._add(TextDelta(self.index, text))

    def _flush(self) -> None:
        self._write(self._text.flush() if self._text is not None else "")

    def _add(self, event: TextDelta | ReasoningDelta | ToolArgumentsDelta) -> None:
        """Append an event, or its text to the last one if that goes on with it."""
        last = self._events[-1] if self._events else None
        if last is not None and last[:-1] == event[:-1] and type(last) is type(event):
            assert not isinstance(last, ChoiceFinished), "nothing follows the end"
            self._events[-1] = event._replace(text=last[-1] + event.text)
        else:
            self._events.append(event)

    def _end(self, event: ChoiceFinished) -> None:
        self.is_done = True
        self._events.append(event)

    def _taken(self) -> list[ChatEvent]:
        events, self._events = self._events, []
        return events
