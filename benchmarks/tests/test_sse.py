"""The parsers give the same result for every split of their input."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire_bench.sse import ChunkedDecoder, FramingError, SseParser


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(edges)]


@given(st.lists(st.binary(min_size=1, max_size=40), max_size=6), st.lists(st.integers(0, 10**6), max_size=8))
def test_chunked_body_survives_any_split(bodies: list[bytes], cuts: list[int]) -> None:
    """The decoded body is the concatenation of the chunks, wherever the network cuts the bytes."""
    wire = b"".join(b"%X;ext=1\r\n%s\r\n" % (len(body), body) for body in bodies) + b"0\r\nTrailer: x\r\n\r\n"
    decoder = ChunkedDecoder()
    assert b"".join(decoder.feed(piece) for piece in pieces(wire, cuts)) == b"".join(bodies)
    assert decoder.finished


def test_chunked_body_is_handed_out_before_its_chunk_is_complete() -> None:
    """A token in an unfinished chunk is not held back."""
    decoder = ChunkedDecoder()
    assert decoder.feed(b"a\r\nhello") == b"hello"
    assert decoder.feed(b"world") == b"world"
    assert decoder.feed(b"\r") == b""
    assert not decoder.finished


@pytest.mark.parametrize("wire", [b"zz\r\n", b"1\r\nab\r\n", b"0\r\n\r\nX"])
def test_broken_chunked_coding_is_refused(wire: bytes) -> None:
    """A bad size, a missing CRLF or bytes after the end raise FramingError rather than give a wrong body."""
    with pytest.raises(FramingError):
        ChunkedDecoder().feed(wire)


@given(st.sampled_from([b"\n", b"\r\n", b"\r"]), st.lists(st.integers(0, 10**6), max_size=8))
def test_events_survive_any_split_and_line_end(line_end: bytes, cuts: list[int]) -> None:
    """All three line ends are understood, comments and empty events are dropped, data lines are joined."""
    lines = [
        b": ping",
        b"",
        b"data: one",
        b"",
        b"event: x",
        b"data:two",
        b"data: lines",
        b"",
        b"id: 3",
        b"",
        b"data: [DONE]",
    ]
    wire = line_end.join(lines) + line_end * 2
    parser = SseParser()
    found = [payload for piece in pieces(wire, cuts) for payload in parser.feed(piece)]
    if line_end == b"\r":  # the last CR could be half of a CRLF until another byte comes
        found += parser.feed(b"\r")
    assert found == [b"one", b"two\nlines", b"[DONE]"]


def test_incomplete_event_is_not_given() -> None:
    """An event without its blank line is not an event yet."""
    parser = SseParser()
    assert parser.feed(b"data: half\n") == []
    assert parser.feed(b"\n") == [b"half"]
