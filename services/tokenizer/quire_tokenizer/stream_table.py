"""The open detokenisation streams of one caller, and the columns of one step applied to them.

Streams are the caller's: they end with its call. What is wrong with one stream fails that stream alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from quire_servicekit.errors import InvalidRequest
from quire_tokenizer.detokenize import Detokenizer, TextStream


@dataclass(slots=True)
class TextColumns:
    """What one batch gave: a text per handle, and beside them the handles that failed, each with its reason."""

    texts: list[str] = field(default_factory=list)
    failed_handles: list[int] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def fail(self, handle: int, reason: str) -> None:
        """Note that `handle` failed."""
        self.failed_handles.append(handle)
        self.failures.append(reason)


class StreamTable:
    """Open streams by the caller's handle. A stream that fails is closed."""

    def __init__(
        self, detokenizer: Detokenizer, *, max_streams: int, on_count: Callable[[int], None] = lambda _: None
    ) -> None:
        """`on_count` is told by how many the number of open streams changes."""
        self._detokenizer = detokenizer
        self._max_streams = max_streams
        self._on_count = on_count
        self._streams: dict[int, TextStream] = {}

    def __len__(self) -> int:
        return len(self._streams)

    def open(
        self, handle: int, *, skip_special_tokens: bool, context_ids: Sequence[int], result: TextColumns
    ) -> None:
        """Open a stream; a handle in use, a full table or an unknown id in the context is noted in `result`."""
        if handle in self._streams:
            result.fail(handle, f"handle {handle} is open already")
            return
        if len(self._streams) >= self._max_streams:
            result.fail(handle, f"{self._max_streams} streams are open, which is the limit")
            return
        try:
            stream = self._detokenizer.open(skip_special_tokens=skip_special_tokens, context_ids=context_ids)
        except InvalidRequest as error:
            result.fail(handle, error.message)
            return
        self._streams[handle] = stream
        self._on_count(1)

    def push(
        self,
        handles: Sequence[int],
        num_tokens: Sequence[int],
        token_ids: Sequence[int],
        is_last: Sequence[int],
        result: TextColumns,
    ) -> None:
        """Append each handle's share of `token_ids` to its stream, and the text that became certain to `result`.

        Raises InvalidRequest when the columns do not fit together: then nothing has been applied.
        """
        if not len(handles) == len(num_tokens) == len(is_last):
            counts = f"{len(handles)}, {len(num_tokens)}, {len(is_last)}"
            raise InvalidRequest("handles, num_tokens, is_last", "of one length", counts)
        if sum(num_tokens) != len(token_ids):
            raise InvalidRequest("token_ids", f"{sum(num_tokens)} ids, the sum of num_tokens", len(token_ids))
        streams = self._streams
        texts = result.texts
        start = 0
        for handle, count, last in zip(handles, num_tokens, is_last, strict=True):
            end = start + count
            stream = streams.get(handle)
            if stream is None:
                texts.append("")
                result.fail(handle, f"handle {handle} is not open")
            else:
                try:
                    text = stream.push(token_ids[start:end])
                    texts.append(text + stream.flush() if last else text)
                except InvalidRequest as error:
                    texts.append("")
                    result.fail(handle, error.message)
                    last = 1
                if last:
                    self.close(handle)
            start = end

    def close(self, handle: int) -> None:
        """Drop a stream; one that is not open is fine."""
        if self._streams.pop(handle, None) is not None:
            self._on_count(-1)

    def close_all(self) -> None:
        """Drop every stream: the caller went away."""
        num_open = len(self._streams)
        self._streams.clear()
        self._on_count(-num_open)
