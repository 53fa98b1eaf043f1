"""What the gateway asks of whatever turns its sequences' tokens into text, and who does it.

One job: the interface, and the choice. The tokenizer can do it for every vocabulary, the gateway itself for those whose
text is their tokens' bytes, without the way there and back.
"""

from __future__ import annotations

from typing import Literal, Protocol

from quire_gateway.active_request import ActiveRequest
from quire_gateway.sequences import FinishReason, SequenceState, TokenLogprob
from quire_servicekit.errors import FailedPrecondition


class Detokenizer(Protocol):
    """Takes tokens of open streams and delivers them with their text to the sequences, in order.

    What cannot become text fails that request alone.
    """

    @property
    def num_streams(self) -> int:
        """Streams that are open."""

    def start(self) -> None:
        """Begin; called once, inside the event loop."""

    async def close(self) -> None:
        """End; also without a start."""

    def open(self, request: ActiveRequest, sequence: SequenceState) -> None:
        """Begin a stream for the sequence; takes effect with its first tokens."""

    def feed(
        self,
        sequence: SequenceState,
        token_ids: list[int],
        logprobs: list[TokenLogprob],
        sampled_at_unix_us: int,
        reason: FinishReason | None,
    ) -> None:
        """New tokens of an open stream; `reason` set: its last ones. May deliver, and so end the request, at once."""

    def flush(self) -> None:
        """A frame's last sequence was fed."""

    def drop(self, sequence: SequenceState) -> None:
        """No more text is wanted. Without effect on a stream that has ended."""


#: Who is to join text. auto: the gateway where it can, else the tokenizer. gateway: a vocabulary for which it can't is
#: refused.
DetokenizeMode = Literal["auto", "gateway", "tokenizer"]


def joins_bytes(mode: DetokenizeMode, is_text_bytes: bool) -> bool:
    """Whether the gateway joins text itself. is_text_bytes: the vocabulary's text is its tokens' bytes.

    Raises FailedPrecondition when the gateway should and cannot.
    """
    if mode == "gateway" and not is_text_bytes:
        raise FailedPrecondition("detokenize: gateway needs a vocabulary whose text is its tokens' bytes")
    return is_text_bytes and mode != "tokenizer"
