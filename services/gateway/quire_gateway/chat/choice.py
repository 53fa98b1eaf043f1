"""One choice's output, from text as the model wrote it to events.

One job: run the parsers and number the calls. Knows neither gRPC nor any dialect's JSON.
"""

from __future__ import annotations

from quire_gateway.chat.events import ChatEvent, ChatFinish, ChoiceFinished, TextDelta
from quire_gateway.sequences import Finish, FinishReason

_FINISHES = {FinishReason.STOP: ChatFinish.STOP, FinishReason.LENGTH: ChatFinish.LENGTH}


class ChoiceParser:
    """Without parsers all output is text."""

    __slots__ = ("index", "is_done", "num_reasoning_tokens")

    #: Stands in a result until its choice has finished.
    unfinished_reason = ChatFinish.STOP

    def __init__(self, index: int) -> None:
        self.index = index
        self.is_done = False
        self.num_reasoning_tokens = 0

    def push(self, text: str, token_ids: list[int]) -> list[ChatEvent]:
        """The events of new output. text may lag behind its tokens."""
        return [TextDelta(self.index, text)] if text else []

    def finish(self, finish: Finish) -> list[ChatEvent]:
        """The last events."""
        self.is_done = True
        return [ChoiceFinished(self.index, _FINISHES[finish.reason], finish.stop_text, finish.stop_token_id)]
