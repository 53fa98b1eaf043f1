"""What happens in the answer to a conversation.

One job: the vocabulary between the chat runner and the dialects that write its news. Plain data: knows neither gRPC nor
any dialect's JSON.

Of one choice the order is: reasoning, text and calls as the model wrote them (a call is one `ToolCallStarted`, any
number of `ToolArgumentsDelta`, one `ToolCallFinished`; calls never interleave), and one `ChoiceFinished` at last.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from quire_gateway.sequences import TokenLogprob


class ChatFinish(enum.Enum):
    """Why a choice ended well; the values are the OpenAI dialect's words."""

    STOP = "stop"
    LENGTH = "length"
    #: The model ended its turn with calls of tools.
    TOOL_CALLS = "tool_calls"


class TokensSampled(NamedTuple):
    """The tokens behind what follows; only where the call wants them (`ChatCall.wants_tokens`)."""

    choice_index: int
    token_ids: list[int]
    logprobs: list[TokenLogprob]
    sampled_at_unix_us: int


class TextDelta(NamedTuple):
    """More of what the model says to the user."""

    choice_index: int
    text: str


class ReasoningDelta(NamedTuple):
    """More of what the model thinks."""

    choice_index: int
    text: str


class ToolCallStarted(NamedTuple):
    """A call of a tool begins. call_index counts the choice's calls from 0."""

    choice_index: int
    call_index: int
    call_id: str
    name: str


class ToolArgumentsDelta(NamedTuple):
    """More of a call's arguments: the pieces joined are the JSON text of one object (cut short if the output was)."""

    choice_index: int
    call_index: int
    text: str


class ToolCallFinished(NamedTuple):
    """The call's arguments are all there."""

    choice_index: int
    call_index: int


class ChoiceFinished(NamedTuple):
    """The choice is complete. At most one of stop_text and stop_token_id is set."""

    choice_index: int
    reason: ChatFinish
    stop_text: str | None = None
    stop_token_id: int | None = None


ChatEvent = (
    TokensSampled
    | TextDelta
    | ReasoningDelta
    | ToolCallStarted
    | ToolArgumentsDelta
    | ToolCallFinished
    | ChoiceFinished
)
