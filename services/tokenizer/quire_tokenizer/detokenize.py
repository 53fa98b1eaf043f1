"""Incremental detokenisation: tokens of many streams in, text that has become certain out.

The texts of a stream, concatenated, equal the one-shot decode of its tokens, however they were chunked. Bytes that may
still become a character are held back, so no U+FFFD appears that the one-shot decode would not have. This runs once
per engine step for every stream, so the common case (one token that is whole characters) is one list look-up.

`decode` is the one-shot form, by definition of the same result. It differs from the tokenizers library in one case:
where byte tokens (<0xNN>) are no valid UTF-8 it replaces only the invalid part, the library the whole run.
"""

from __future__ import annotations

from codecs import utf_8_decode
from collections.abc import Sequence
from typing import Final, Protocol

from tokenizers import Tokenizer

from quire_servicekit.errors import InvalidRequest
from quire_tokenizer.vocabulary import Scheme, Vocabulary

REPLACEMENT: Final = "\ufffd"
# A generic decoder's text that ends in U+FFFD may be half a character, which never takes more tokens than this.
MAX_HELD_TOKENS: Final = 16


def _unknown_id(token_ids: Sequence[int], vocab_size: int) -> InvalidRequest:
    return InvalidRequest("token_ids", f"below the vocabulary size {vocab_size}", max(token_ids))


class TextStream(Protocol):
    """The state of one stream."""

    def push(self, token_ids: Sequence[int]) -> str:
        """Append tokens, return the text that became certain (may be empty). Raises InvalidRequest."""

    def flush(self) -> str:
        """End the stream: return what was held back, as the one-shot decode shows it."""


class Detokenizer:
    """Makes streams for one vocabulary, with the tables they share."""

    def __init__(self, backend: Tokenizer, vocabulary: Vocabulary) -> None:
        self._backend = backend
        self._vocabulary = vocabulary
        kept = vocabulary.token_bytes
        if vocabulary.scheme is Scheme.GENERIC:
            nameless = frozenset(token_id for token_id, token in enumerate(vocabulary.tokens) if not token)
            self._left_out = {False: nameless, True: nameless | vocabulary.special_ids}
        else:
            special_ids = vocabulary.special_ids
            skipped = [b"" if token_id in special_ids else piece for token_id, piece in enumerate(kept)]
            self._tables = {False: _Table(kept), True: _Table(skipped)}

    def open(self, *, skip_special_tokens: bool = True, context_ids: Sequence[int] = ()) -> TextStream:
        """Start a stream.

        `context_ids`: tokens of this stream whose text was delivered already by another replica, oldest first. All of
        them give its exact state; so do the last 16, unless all of those are special tokens that are left out.
        """
        stream: TextStream
        if self._vocabulary.scheme is Scheme.GENERIC:
            stream = _GenericStream(self._backend, self._left_out[skip_special_tokens], self._vocabulary.size)
            # One by one: what the other replica held back is then held back here too, and not thrown away.
            for token_id in context_ids:
                stream.push((token_id,))
            return stream
        stream = _ByteStream(self._tables[skip_special_tokens], self._vocabulary.num_leading_spaces_stripped)
        if context_ids:
            stream.push(context_ids)
        return stream

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Decode a whole sequence at once; bytes that are no UTF-8 become U+FFFD.

        Raises InvalidRequest for an id that is not below the vocabulary size.
        """
        stream = self.open(skip_special_tokens=skip_special_tokens)
        return stream.push(token_ids) + stream.flush()


class _Table:
    """Per token id its bytes, and its text where the bytes are whole characters (otherwise None)."""

    __slots__ = ("pieces", "texts")

    def __init__(self, pieces: list[bytes]) -> None:
        self.pieces = pieces
        self.texts = [_whole_text(piece) for piece in pieces]


def _whole_text(piece: bytes) -> str | None:
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return None


class _ByteStream:
    """A stream whose tokens are bytes. `_held` is the start of a character, three bytes at most."""

    __slots__ = ("_held", "_num_stripped", "_pieces", "_texts")

    def __init__(self, table: _Table, num_leading_spaces_stripped: int) -> None:
        self._pieces = table.pieces
        self._texts = table.texts
        self._held = b""
        self._num_stripped = num_leading_spaces_stripped

    def push(self, token_ids: Sequence[int]) -> str:
        try:
            if len(token_ids) == 1 and not self._held and not self._num_stripped:
                text = self._texts[token_ids[0]]
                if text is not None:
                    return text
            pieces = self._pieces
            data = self._held + b"".join([pieces[token_id] for token_id in token_ids])
        except IndexError:
            raise _unknown_id(token_ids, len(self._pieces)) from None
        if self._num_stripped:
            data = self._strip(data)
        # Not final: the decoder leaves an incomplete character at the end alone and says how far it got.
        text, num_decoded = utf_8_decode(data, "replace", False)
        self._held = data[num_decoded:]
        return text

    def flush(self) -> str:
        text, _ = utf_8_decode(self._held, "replace", True)
        self._held = b""
        return text

    def _strip(self, data: bytes) -> bytes:
        """Drop the decoder's leading spaces, which only the first bytes of a stream can be."""
        while data and self._num_stripped:
            if data[:1] != b" ":
                self._num_stripped = 0
                break
            data = data[1:]
            self._num_stripped -= 1
        return data


class _GenericStream:
    """A stream whose text only the tokenizer's own decoder knows, where a token's text may depend on the one before.

    Two decodes of a short window, with and without the new tokens, show what the new ones add. The window starts at
    the tokens of the previous emission, so that the decoder never takes a new token for the first of a text.
    """

    __slots__ = ("_backend", "_context", "_left_out", "_pending", "_size")

    def __init__(self, backend: Tokenizer, left_out: frozenset[int], vocab_size: int) -> None:
        self._backend = backend
        self._left_out = left_out
        self._size = vocab_size
        self._context: list[int] = []
        self._pending: list[int] = []

    def push(self, token_ids: Sequence[int]) -> str:
        if token_ids and max(token_ids) >= self._size:
            raise _unknown_id(token_ids, self._size)
        self._pending += [token_id for token_id in token_ids if token_id not in self._left_out]
        return self._emit(hold=True)

    def flush(self) -> str:
        return self._emit(hold=False)

    def _emit(self, *, hold: bool) -> str:
        if not self._pending:
            return ""
        before = self._decode(self._context)
        after = self._decode(self._context + self._pending)
        if hold and len(self._pending) < MAX_HELD_TOKENS and after.endswith(REPLACEMENT):
            return ""
        if len(after) <= len(before):
            # Nothing visible yet (a lone space marker, say): it belongs to the text of the next token.
            if hold:
                return ""
            self._pending = []
            return ""
        self._context, self._pending = self._pending, []
        return after[len(before) :]

    def _decode(self, token_ids: list[int]) -> str:
        text: str = self._backend.decode(token_ids, skip_special_tokens=False)
        return text
