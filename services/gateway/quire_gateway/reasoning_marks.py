"""How a model marks its reasoning, for what depends on it before anything is parsed: stop texts, constraints, budgets.

One job: settle that once a request's prompt is known. Knows neither gRPC nor any model's syntax.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from quire_gateway.sampling import Sampling
from quire_gateway.stop_strings import StopMatcher


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningMarks:
    """The marks of a request's outputs.

    opens: the text with which an output begins if the model thinks. closes: the text behind which it has stopped.
    is_open_after: whether the output to a prompt is reasoning from its first character on.
    """

    opens: str
    closes: str
    is_open_after: Callable[[str], bool]

    def settled(self, sampling: Sampling, prompt_text: str) -> Sampling:
        """The parameters with what the prompt says of the span, if they have one."""
        if sampling.reasoning is None:
            return sampling
        span = dataclasses.replace(sampling.reasoning, starts_open=self.is_open_after(prompt_text))
        return dataclasses.replace(sampling, reasoning=span)

    def stop_matcher(
        self, stops: Sequence[str], prompt_text: str, *, include_stop_text: bool
    ) -> ContentStopMatcher:
        """Finds stop texts behind the reasoning alone."""
        return ContentStopMatcher(
            stops,
            opens="" if self.is_open_after(prompt_text) else self.opens,
            closes=self.closes,
            include_stop_text=include_stop_text,
        )


class ContentStopMatcher(StopMatcher):
    """A search that begins where reasoning ends: what a model thinks is no answer, and cannot end one."""

    __slots__ = ("_closes", "_opens", "_thought", "_undecided")

    def __init__(
        self, stops: Sequence[str], *, opens: str, closes: str, include_stop_text: bool = False
    ) -> None:
        """opens: empty where the output begins inside of reasoning."""
        super().__init__(stops, include_stop_text=include_stop_text)
        self._opens, self._closes = opens, closes
        #: Text that may be, or become, the beginning of the opening mark; None once that is known.
        self._undecided: str | None = "" if opens else None
        #: The end of what was thought so far; None behind it.
        self._thought: str | None = None if opens else ""

    def feed(self, piece: str) -> str:
        """See StopMatcher; text in reasoning is certain at once."""
        if self._undecided is not None:
            piece = self._decide(self._undecided + piece)
        if self._thought is None:
            return super().feed(piece)
        text = self._thought + piece
        end = text.find(self._closes)
        if end < 0:
            self._thought = text[-len(self._closes) + 1 :] if len(self._closes) > 1 else ""
            return piece
        num_thought = end + len(self._closes) - len(self._thought)
        self._thought = None
        return piece[:num_thought] + super().feed(piece[num_thought:])

    def flush(self) -> str:
        """See StopMatcher."""
        if self._undecided:
            held, self._undecided = self._undecided, None
            return super().feed(held) + super().flush()
        return super().flush()

    def _decide(self, text: str) -> str:
        """Tell whether the output opens reasoning; the text that is to be looked at then."""
        begun = text.lstrip()
        if begun.startswith(self._opens):
            self._undecided, self._thought = None, ""
        elif not self._opens.startswith(begun):
            self._undecided = None
        else:
            self._undecided = text
            return ""
        return text
