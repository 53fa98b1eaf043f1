"""Text from the vocabulary's own bytes, in this process: for vocabularies whose text is their tokens' bytes.

One job: incremental UTF-8 for every sequence, delivered at once. The texts of a stream, concatenated, equal the
tokenizer's decode of its tokens, however they were chunked; tests/contract holds the two together. Knows no tokenizer:
one that dies pauses no stream. There is no state to rebuild either, since a stream lives as long as its request, on
whichever engine that runs.
"""

from __future__ import annotations

from codecs import utf_8_decode
from collections.abc import Collection, Sequence

from quire_gateway.active_request import ActiveRequest
from quire_gateway.sequences import FinishReason, SequenceState, TokenLogprob
from quire_servicekit.errors import InternalError
from quire_servicekit.logging import get_logger

log = get_logger("byte detokenizer")


class ByteTable:
    """Per token id its bytes, and its text where the bytes are whole characters (otherwise None)."""

    __slots__ = ("pieces", "texts")

    def __init__(self, vocabulary: Sequence[bytes], left_out: Collection[int] = ()) -> None:
        """left_out: ids that give no text; those outside the vocabulary are ignored."""
        self.pieces = list(vocabulary)
        for token_id in left_out:
            if token_id < len(self.pieces):
                self.pieces[token_id] = b""
        self.texts = [_whole_text(piece) for piece in self.pieces]


class ByteText:
    """One text that grows by tokens. `_held` is the start of a character, three bytes at most."""

    __slots__ = ("_held", "_num_stripped", "_table")

    def __init__(self, table: ByteTable, num_leading_spaces_stripped: int = 0) -> None:
        self._table = table
        self._num_stripped = num_leading_spaces_stripped
        self._held = b""

    def push(self, token_ids: Sequence[int]) -> str:
        """Append tokens, return the text that became certain (may be empty).

        Raises IndexError for an id outside the vocabulary; then nothing was appended.
        """
        if len(token_ids) == 1 and not self._held and not self._num_stripped:
            # Nearly every call of a stream: one token, whole characters.
            text = self._table.texts[token_ids[0]]
            if text is not None:
                return text
        pieces = self._table.pieces
        data = self._held + b"".join([pieces[token_id] for token_id in token_ids])
        if self._num_stripped:
            data = self._strip(data)
        # Not final: the decoder leaves an incomplete character at the end alone and says how far it got.
        text, num_decoded = utf_8_decode(data, "replace", False)
        self._held = data[num_decoded:]
        return text

    def flush(self) -> str:
        """End the text: what was held back, with U+FFFD for it."""
        text, _ = utf_8_decode(self._held, "replace", True)
        self._held = b""
        return text

    def _strip(self, data: bytes) -> bytes:
        """Leave out leading spaces, which only the first bytes of a text can be."""
        while data and self._num_stripped:
            if data[:1] != b" ":
                self._num_stripped = 0
                break
            data = data[1:]
            self._num_stripped -= 1
        return data


class ByteDetokenizer:
    """Joins the text of all sequences; see `detokenizing.Detokenizer` for the methods' contracts."""

    def __init__(
        self,
        vocabulary: Sequence[bytes],
        *,
        special_token_ids: Collection[int] = (),
        num_leading_spaces_stripped: int = 0,
    ) -> None:
        """vocabulary: the bytes of each token id's text. special_token_ids: what skip_special_tokens leaves out."""
        self._tables = {False: ByteTable(vocabulary), True: ByteTable(vocabulary, special_token_ids)}
        self._num_leading_spaces_stripped = num_leading_spaces_stripped
        self._streams: dict[SequenceState, tuple[ActiveRequest, ByteText]] = {}

    @property
    def num_streams(self) -> int:
        """Streams that are open."""
        return len(self._streams)

    def start(self) -> None:
        """Nothing runs in the background."""

    async def close(self) -> None:
        """Nothing runs in the background."""

    def open(self, request: ActiveRequest, sequence: SequenceState) -> None:
        """Begin a stream for the sequence."""
        table = self._tables[request.spec.skip_special_tokens]
        self._streams[sequence] = request, ByteText(table, self._num_leading_spaces_stripped)

    def feed(
        self,
        sequence: SequenceState,
        token_ids: list[int],
        logprobs: list[TokenLogprob],
        sampled_at_unix_us: int,
        reason: FinishReason | None,
    ) -> None:
        """Deliver the tokens with the text that became certain; `reason` set: with all that is left."""
        stream = self._streams.get(sequence)
        if stream is None:
            return
        request, joined = stream
        try:
            text = joined.push(token_ids)
        except IndexError:
            del self._streams[sequence]
            log.error("detokenisation failed", request=request.spec.id, reason="unknown token id")
            request.fail(InternalError("the text of this request could not be decoded"))
            return
        if reason is not None:
            del self._streams[sequence]
            text += joined.flush()
        sequence.deliver(text, token_ids, logprobs, sampled_at_unix_us, reason)

    def flush(self) -> None:
        """Everything was delivered when it was fed."""

    def drop(self, sequence: SequenceState) -> None:
        """No more text is wanted. Without effect on a stream that has ended."""
        self._streams.pop(sequence, None)


def _whole_text(piece: bytes) -> str | None:
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return None
