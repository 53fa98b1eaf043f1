"""One sequence of a request, from the engine's tokens to the client's text.

One job: hold what a sequence has, apply stop texts, and merge news until the client's stream takes it. A slow reader
makes one delta grow; nothing else is ever queued. Knows neither gRPC nor JSON.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from quire_gateway.stop_strings import StopMatcher, num_tokens_until_stop

if TYPE_CHECKING:
    from quire_gateway.outlet import Outlet

#: Bytes of each token id's text, where the tokenizer's vocabulary is known.
Vocabulary = Sequence[bytes]


class FinishReason(enum.Enum):
    """Why a sequence ended well. Every other end is an error."""

    STOP = "stop"
    LENGTH = "length"


class WakeOn(enum.Enum):
    """What makes a sequence's reader run."""

    #: Text that became certain.
    TEXT = enum.auto()
    #: Tokens, even while their text is held back.
    TOKENS = enum.auto()
    #: Only the end: the reader wants everything at once.
    END = enum.auto()


@dataclass(frozen=True, slots=True)
class Finish:
    """How a sequence ended: at most one of stop_text and stop_token_id is set."""

    reason: FinishReason
    stop_text: str | None = None
    stop_token_id: int | None = None


class TokenLogprob(NamedTuple):
    """Natural log-probability of one sampled token, its rank (1 = most probable) and the most probable tokens."""

    token_id: int
    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...]


class Update(NamedTuple):
    """What a sequence gained since the last update was taken."""

    text: str
    token_ids: list[int]
    logprobs: list[TokenLogprob]
    #: The worker's wall clock for the newest of the tokens, Unix microseconds; 0 if unknown.
    sampled_at_unix_us: int


class OutputSpec(NamedTuple):
    """What a request wants of its sequences' output."""

    stop: tuple[str, ...] = ()
    include_stop_text: bool = False
    #: The request's own stop ids (not the model's end-of-sequence ids).
    stop_token_ids: frozenset[int] = frozenset()
    wake_on: WakeOn = WakeOn.TEXT
    #: Makes what finds the stop texts, where that is not found in all of the output.
    new_matcher: Callable[[], StopMatcher] | None = None
    #: Tokens that one piece of news brings, but for the first and the last.
    stream_interval: int = 1


class SequenceState:
    """One continuation. `receive` takes what the engine sent, `deliver` what has become text, `take` hands it out."""

    __slots__ = (
        "_logprobs",
        "_matcher",
        "_next_wake",
        "_on_end",
        "_outlet",
        "_sampled_at_unix_us",
        "_spec",
        "_text",
        "_token_ids",
        "_vocabulary",
        "_wake_on",
        "choice_index",
        "finish",
        "index",
        "is_dirty",
        "is_engine_done",
        "num_delivered",
        "num_output_tokens",
        "received_token_ids",
    )

    def __init__(
        self,
        index: int,
        choice_index: int,
        outlet: Outlet,
        spec: OutputSpec,
        *,
        on_end: Callable[[SequenceState], None],
        vocabulary: Vocabulary = (),
    ) -> None:
        """index: number within its request. choice_index: number within the client's call. on_end: told once."""
        self.index, self.choice_index = index, choice_index
        self._outlet, self._spec, self._on_end, self._vocabulary = outlet, spec, on_end, vocabulary
        self._wake_on = spec.wake_on
        self._matcher: StopMatcher | None = None
        if spec.stop:
            self._matcher = (
                StopMatcher(spec.stop, include_stop_text=spec.include_stop_text)
                if spec.new_matcher is None
                else spec.new_matcher()
            )
        #: Every token the engine sent, in order: what another engine needs to go on.
        self.received_token_ids: list[int] = []
        #: The engine has said that the sequence ended.
        self.is_engine_done = False
        #: How many of the received tokens have been delivered.
        self.num_delivered = 0
        #: Tokens that count as output: received ones without those behind a stop text.
        self.num_output_tokens = 0
        #: How it ended; None while it goes on.
        self.finish: Finish | None = None
        #: Whether the outlet lists it already.
        self.is_dirty = False
        self._text = ""
        self._token_ids: list[int] = []
        self._logprobs: list[TokenLogprob] = []
        self._sampled_at_unix_us = 0
        #: Output tokens at which the reader is woken next.
        self._next_wake = 1

    def deliver(
        self,
        text: str,
        token_ids: list[int],
        logprobs: list[TokenLogprob],
        sampled_at_unix_us: int,
        reason: FinishReason | None,
    ) -> None:
        """`token_ids` have become `text` (which may lag behind them); `reason` is set with the last ones.

        After a stop text matched, whatever the engine still sends is dropped.
        """
        if self.finish is not None:
            return
        self.num_delivered += len(token_ids)
        if self._matcher is not None:
            text = self._apply_stops(self._matcher, text, token_ids, logprobs, reason)
        self._text += text
        self._token_ids += token_ids
        self._logprobs += logprobs
        self.num_output_tokens += len(token_ids)
        self._sampled_at_unix_us = sampled_at_unix_us
        if reason is not None and self.finish is None:
            self.finish = Finish(reason, stop_token_id=self._stop_token_of(token_ids, reason))
        if self.finish is not None:
            self._on_end(self)
            self._outlet.touch(self)
        elif (
            (text and self._wake_on is not WakeOn.END) or (token_ids and self._wake_on is WakeOn.TOKENS)
        ) and (self._spec.stream_interval == 1 or self._is_wake_due()):
            self._outlet.touch(self)

    def _is_wake_due(self) -> bool:
        if self.num_output_tokens < self._next_wake:
            return False
        self._next_wake = self.num_output_tokens + self._spec.stream_interval
        return True

    def end(self) -> None:
        """Nothing more is wanted of it: it counts as stopped, and its engine is told."""
        if self.finish is None:
            self.finish = Finish(FinishReason.STOP)
            self._on_end(self)

    def take(self) -> Update:
        """Everything gained since the last call."""
        update = Update(self._text, self._token_ids, self._logprobs, self._sampled_at_unix_us)
        self._text, self._token_ids, self._logprobs = "", [], []
        return update

    def _apply_stops(
        self,
        matcher: StopMatcher,
        text: str,
        token_ids: list[int],
        logprobs: list[TokenLogprob],
        reason: FinishReason | None,
    ) -> str:
        """Run the piece through the matcher; cut tokens behind a match, so that counts don't depend on merging."""
        certain = matcher.feed(text)
        if matcher.matched is not None:
            self.finish = Finish(FinishReason.STOP, stop_text=matcher.matched)
            if matcher.num_chars_after and self._vocabulary:
                behind = text[len(text) - matcher.num_chars_after :].encode()
                pieces = [self._vocabulary[i] if i < len(self._vocabulary) else b"" for i in token_ids]
                needed = num_tokens_until_stop(pieces, len(behind))
                del token_ids[needed:]
                del logprobs[needed:]
            return certain
        return certain + matcher.flush() if reason is not None else certain

    def _stop_token_of(self, token_ids: list[int], reason: FinishReason) -> int | None:
        if reason is FinishReason.STOP and token_ids and token_ids[-1] in self._spec.stop_token_ids:
            return token_ids[-1]
        return None
