"""Stop texts: the output depends on the text alone, never on how it was cut."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire_gateway.stop_strings import StopMatcher, find_stop, num_tokens_until_stop

# Few letters, so that stops and their beginnings occur all the time.
_TEXT = st.text(alphabet="abé", max_size=40)
_STOPS = st.lists(st.text(alphabet="abé", min_size=1, max_size=5), min_size=1, max_size=4)


def _one_shot(text: str, stops: list[str], *, include: bool) -> tuple[str, str | None]:
    """The rule, literally: the first end of any stop text; at equal ends the earliest start."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            stop = max(ending, key=len)
            return text[: end if include else end - len(stop)], stop
    return text, None


def _feed(pieces: list[str], stops: list[str], *, include: bool) -> tuple[list[str], str | None]:
    matcher = StopMatcher(stops, include_stop_text=include)
    out = [matcher.feed(piece) for piece in pieces]
    if matcher.matched is None:
        out.append(matcher.flush())
    return out, matcher.matched


@settings(max_examples=400, deadline=None)
@given(text=_TEXT, stops=_STOPS, cuts=st.sets(st.integers(0, 40)), include=st.booleans())
def test_output_equals_the_one_shot_rule_for_any_cutting(
    text: str, stops: list[str], cuts: set[int], include: bool
) -> None:
    """Any text, any chunking, any stops: the concatenated output is what the rule gives for the whole text."""
    borders = [0, *sorted(cut for cut in cuts if cut < len(text)), len(text)]
    pieces = [text[start:end] for start, end in itertools.pairwise(borders)]
    out, matched = _feed(pieces, stops, include=include)
    assert ("".join(out), matched) == _one_shot(text, stops, include=include)


@settings(max_examples=300, deadline=None)
@given(text=_TEXT, stops=_STOPS)
def test_nothing_that_may_begin_a_stop_is_emitted_early(text: str, stops: list[str]) -> None:
    """After every character the held-back part is exactly the longest end of the text that begins a stop text."""
    matcher = StopMatcher(stops)
    emitted = ""
    for position, character in enumerate(text, 1):
        emitted += matcher.feed(character)
        if matcher.matched is not None:
            return
        seen = text[:position]
        held = next(
            (
                seen[i:]
                for i in range(len(seen))
                if any(s.startswith(seen[i:]) and s != seen[i:] for s in stops)
            ),
            "",
        )
        assert emitted == seen[: len(seen) - len(held)]
        assert len(held) < max(map(len, stops))


@pytest.mark.parametrize(
    ("text", "stops", "expected"),
    [("xabcy", ["abc", "bc"], (1, 4)), ("xbcd", ["abc", "bc", "bcd"], (1, 3)), ("xyz", ["a"], None)],
)
def test_find_stop_takes_the_first_end_and_then_the_longest(
    text: str, stops: list[str], expected: tuple[int, int] | None
) -> None:
    """The sequence ends where a stop text is first complete; of equal ends the longest stop counts."""
    assert find_stop(text, stops) == expected


def test_pieces_after_a_match_are_dropped() -> None:
    """What the engine still sends after the stop text never comes out."""
    matcher = StopMatcher(["."])
    assert matcher.feed("end. more") == "end"
    assert matcher.num_chars_after == len(" more")
    assert matcher.feed("again.") == ""
    assert matcher.matched == "."


def test_an_empty_stop_is_refused() -> None:
    """An empty stop text would end every sequence before its first character."""
    with pytest.raises(ValueError, match="at least one character"):
        StopMatcher(["a", ""])


@pytest.mark.parametrize(("num_bytes_after", "expected"), [(0, 3), (1, 3), (2, 2), (4, 2), (5, 1), (99, 1)])
def test_tokens_behind_the_stop_are_not_counted(num_bytes_after: int, expected: int) -> None:
    """A token that lies wholly behind the stop text is no output; one that the stop text ends in is."""
    assert num_tokens_until_stop([b"a", b"bcd", b"ef"], num_bytes_after) == expected
