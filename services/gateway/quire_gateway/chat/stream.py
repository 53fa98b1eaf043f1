"""An answer under way: the engine's news become the events of a conversation.

One job: take what the sequences gained, run it through each choice's parsers, and hand out events. Knows neither gRPC
nor any dialect's JSON.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

from quire_gateway.chat.choice import ChoiceParser
from quire_gateway.chat.events import (
    ChatEvent,
    ChatFinish,
    ChoiceFinished,
    ReasoningDelta,
    TextDelta,
    TokensSampled,
    ToolArgumentsDelta,
    ToolCallStarted,
)
from quire_gateway.generation import Generation
from quire_gateway.models import ServedModel
from quire_gateway.sequences import TokenLogprob


@dataclass(frozen=True, slots=True)
class ChatUsage:
    """Token counts as of now."""

    num_prompt_tokens: int
    num_output_tokens: int
    num_cached_tokens: int
    #: Output tokens in which the model was thinking.
    num_reasoning_tokens: int


@dataclass(slots=True)
class ToolCallResult:
    """One call; `arguments` is JSON text."""

    id: str
    name: str
    arguments: str = ""


@dataclass(slots=True)
class ChoiceResult:
    """Everything of one choice."""

    finish: ChoiceFinished
    text: str = ""
    reasoning: str = ""
    tool_calls: list[ToolCallResult] = field(default_factory=list)
    #: Only where the call wants them.
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)


class ChatStream:
    """The answer to one call."""

    def __init__(
        self, generation: Generation, make_parser: Callable[[int], ChoiceParser] | None, *, wants_tokens: bool
    ) -> None:
        """make_parser: for a choice index; None: there is nothing to parse, all output is text."""
        self.generation = generation
        self._wants_tokens = wants_tokens
        #: Whether text is all there can be: then a dialect may read `generation` itself, without events.
        self.is_plain = make_parser is None
        self.choices = [
            (make_parser or ChoiceParser)(sequence.choice_index) for sequence in generation.sequences
        ]

    @property
    def id(self) -> str:
        """Our id of the call, without a dialect's prefix."""
        return self.generation.id

    @property
    def model(self) -> ServedModel:
        """The model that serves it."""
        return self.generation.model

    @property
    def usage(self) -> ChatUsage:
        """Token counts as of now."""
        generation = self.generation
        return ChatUsage(
            generation.num_prompt_tokens,
            generation.num_output_tokens,
            generation.num_cached_tokens,
            sum(choice.num_reasoning_tokens for choice in self.choices),
        )

    @property
    def count_reasoning(self) -> Callable[[], int] | None:
        """Counts the output tokens in which the model was thinking; None: it does not think."""
        if not any(choice.can_reason for choice in self.choices):
            return None
        return lambda: self.usage.num_reasoning_tokens

    @property
    def is_complete(self) -> bool:
        """Every choice has ended, and its end was among the events."""
        return all(choice.is_done for choice in self.choices)

    async def wait_accepted(self, timeout_s: float) -> None:
        """Return when the engine took the call, or after `timeout_s` without a refusal; raises the refusal."""
        await self.generation.wait_accepted(timeout_s)

    async def events(self) -> AsyncIterator[list[ChatEvent]]:
        """The events, in lists of what is there at once, until every choice has ended. Raises what ends it early."""
        running = set(range(len(self.choices)))
        while running:
            events: list[ChatEvent] = []
            for sequence in await self.generation.news():
                update, choice = sequence.take(), self.choices[sequence.choice_index]
                if choice.index not in running:
                    continue
                if self._wants_tokens and update.token_ids:
                    events.append(
                        TokensSampled(
                            sequence.choice_index,
                            update.token_ids,
                            update.logprobs,
                            update.sampled_at_unix_us,
                        )
                    )
                events += choice.push(update.text, update.token_ids)
                if sequence.finish is not None:
                    events += choice.finish(sequence.finish)
                elif choice.is_done:
                    # The parser has all that is wanted.
                    sequence.end()
                if choice.is_done:
                    running.discard(choice.index)
            if events:
                yield events

    async def collect(self) -> list[ChoiceResult]:
        """The whole answer, by choice index."""
        results = [ChoiceResult(ChoiceFinished(choice.index, ChatFinish.STOP)) for choice in self.choices]
        async for events in self.events():
            for event in events:
                _add(results[event.choice_index], event)
        return results


def _add(result: ChoiceResult, event: ChatEvent) -> None:
    if isinstance(event, TextDelta):
        result.text += event.text
    elif isinstance(event, ReasoningDelta):
        result.reasoning += event.text
    elif isinstance(event, ToolCallStarted):
        result.tool_calls.append(ToolCallResult(event.call_id, event.name))
    elif isinstance(event, ToolArgumentsDelta):
        result.tool_calls[event.call_index].arguments += event.text
    elif isinstance(event, TokensSampled):
        result.token_ids += event.token_ids
        result.logprobs += event.logprobs
    elif isinstance(event, ChoiceFinished):
        result.finish = event
