"""Columns of one step applied to many streams."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire_servicekit.errors import InvalidRequest
from quire_tokenizer.detokenize import Detokenizer
from quire_tokenizer.stream_table import StreamTable, TextColumns


@pytest.fixture(scope="session")
def detokenizer(smollm2) -> Detokenizer:
    """SmolLM2's detokenizer."""
    return Detokenizer(smollm2.backend, smollm2.vocabulary)


@pytest.fixture
def table(detokenizer) -> StreamTable:
    """A table for up to four streams."""
    return StreamTable(detokenizer, max_streams=4)


def opened(table: StreamTable, *handles: int, skip_special_tokens: bool = True) -> TextColumns:
    """Open streams and return what went wrong."""
    result = TextColumns()
    for handle in handles:
        table.open(handle, skip_special_tokens=skip_special_tokens, context_ids=(), result=result)
    return result


def pushed(table: StreamTable, *rows: tuple[int, list[int], bool]) -> TextColumns:
    """Push rows of (handle, tokens, is last) as columns."""
    result = TextColumns()
    table.push(
        [handle for handle, _, _ in rows],
        [len(ids) for _, ids, _ in rows],
        [token_id for _, ids, _ in rows for token_id in ids],
        [int(last) for _, _, last in rows],
        result,
    )
    return result


def test_each_stream_gets_its_share(table, smollm2):
    """Texts come back in the order of the handles, whatever that order is."""
    opened(table, 7, 3)
    hello, world = smollm2.backend.encode("Hello there").ids, smollm2.backend.encode(" world").ids
    result = pushed(table, (3, world, False), (7, hello, False))
    assert result.texts == [" world", "Hello there"]
    assert result.failures == []


def test_last_tokens_flush_and_close(table, smollm2):
    """is_last emits what was held back and frees the handle for another stream."""
    opened(table, 1)
    first = smollm2.backend.encode("\U0001fae8").ids[0]
    assert pushed(table, (1, [first], False)).texts == [""]
    assert pushed(table, (1, [], True)).texts == ["\ufffd"]
    assert len(table) == 0
    assert opened(table, 1).failures == []


def test_unknown_handle_fails_alone(table, smollm2):
    """A handle that is not open is named; its neighbours get their texts."""
    opened(table, 1)
    ids = smollm2.backend.encode("ok").ids
    result = pushed(table, (9, ids, False), (1, ids, False))
    assert result.texts == ["", "ok"]
    assert result.failed_handles == [9] and "9 is not open" in result.failures[0]


def test_unknown_token_fails_and_closes_its_stream_alone(table, smollm2):
    """An id beyond the vocabulary ends that stream, with the reason, and no other."""
    opened(table, 1, 2)
    ids = smollm2.backend.encode("ok").ids
    result = pushed(table, (1, [49152], False), (2, ids, False))
    assert result.texts == ["", "ok"]
    assert result.failed_handles == [1] and "49152" in result.failures[0]
    assert pushed(table, (1, ids, False)).failed_handles == [1]


def test_opening_twice_or_too_many_fails(table):
    """A handle in use and a full table are refused; what was open stays open."""
    assert opened(table, 1, 1).failed_handles == [1]
    result = opened(table, 2, 3, 4, 5)
    assert result.failed_handles == [5] and "4 streams" in result.failures[0]
    assert len(table) == 4


def test_bad_context_fails_the_opening(table):
    """A context with an unknown id opens nothing."""
    result = TextColumns()
    table.open(1, skip_special_tokens=True, context_ids=[10**6], result=result)
    assert result.failed_handles == [1] and len(table) == 0


def test_closing_is_idempotent(table):
    """Closing drops a stream without text; unknown handles are fine."""
    opened(table, 1)
    table.close(1)
    table.close(1)
    assert len(table) == 0


@pytest.mark.parametrize(
    ("num_tokens", "num_ids", "is_last"), [([1], 1, []), ([], 1, [0]), ([2], 1, [0]), ([1], 2, [0])]
)
def test_columns_that_do_not_fit_are_refused_whole(table, smollm2, num_tokens, num_ids, is_last):
    """Nothing is applied from a batch whose columns contradict each other."""
    opened(table, 1)
    half_a_character = smollm2.backend.encode("\U0001fae8").ids[0]
    with pytest.raises(InvalidRequest):
        table.push([1], num_tokens, [half_a_character] * num_ids, is_last, TextColumns())
    assert pushed(table, (1, smollm2.backend.encode("ok").ids, False)).texts == ["ok"]


def test_number_of_open_streams_is_reported(detokenizer):
    """The listener hears of every opening and closing, so its sum is the number of open streams."""
    changes: list[int] = []
    table = StreamTable(detokenizer, max_streams=9, on_count=changes.append)
    opened(table, 1, 2, 3)
    pushed(table, (1, [5], True))
    assert sum(changes) == len(table) == 2
    table.close_all()
    assert sum(changes) == len(table) == 0


@settings(max_examples=50)
@given(data=st.data())
def test_interleaved_streams_equal_their_decodes(smollm2, detokenizer, data):
    """Streams of random tokens, pushed in any mixture, each join to the one-shot decode."""
    sequences = data.draw(st.lists(st.lists(st.integers(0, 49151), max_size=12), min_size=1, max_size=4))
    table = StreamTable(detokenizer, max_streams=4)
    opened(table, *range(len(sequences)), skip_special_tokens=False)
    texts = [""] * len(sequences)
    left = [list(sequence) for sequence in sequences]
    while any(left):
        rows = []
        for handle, ids in enumerate(left):
            count = data.draw(st.integers(0, len(ids)))
            if count:
                rows.append((handle, ids[:count], False))
                del ids[:count]
        for (handle, _, _), text in zip(rows, pushed(table, *rows).texts, strict=True):
            texts[handle] += text
    for handle in range(len(sequences)):
        texts[handle] += pushed(table, (handle, [], True)).texts[0]
    assert texts == [smollm2.backend.decode(ids, skip_special_tokens=False) for ids in sequences]
