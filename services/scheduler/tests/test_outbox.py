"""What a gateway has not read, merged."""

from quire_scheduler.errors import QueueFull
from quire_scheduler.outbox import Outbox
from quire_scheduler.step import Deltas, LogprobColumns


def deltas(rows, finish=(), logprobs=None, started=()):
    """Deltas from rows of (handle, sequence index, tokens)."""
    return Deltas(
        handles=[handle for handle, _, _ in rows],
        sequence_indices=[index for _, index, _ in rows],
        num_tokens=[len(tokens) for _, _, tokens in rows],
        token_ids=[token for _, _, tokens in rows for token in tokens],
        finish_reasons=list(finish),
        started_handles=[handle for handle, _ in started],
        num_cached_tokens=[count for _, count in started],
        logprobs=logprobs,
    )


def test_what_is_read_at_once_is_passed_through():
    """A gateway that keeps up gets each step's deltas as they are, the very object."""
    outbox, news = Outbox(100), deltas([(1, 0, [5])])
    assert not outbox
    outbox.put(3, 77, news)
    assert outbox
    assert outbox.take() == (3, 77, news)
    assert not outbox


def test_unread_rows_are_joined_per_sequence():
    """Tokens of one sequence follow each other in one row; sequences keep their first order."""
    outbox = Outbox(100)
    outbox.put(1, 10, deltas([(1, 0, [5]), (2, 0, [6]), (2, 1, [7])]))
    outbox.put(2, 20, deltas([(2, 0, [8]), (3, 0, [9])]))
    outbox.put(3, 30, deltas([(1, 0, [10, 11])], finish=[2]))
    step_id, sampled_at, merged = outbox.take()
    assert (step_id, sampled_at) == (3, 30)
    assert merged.handles == [1, 2, 2, 3]
    assert merged.sequence_indices == [0, 0, 1, 0]
    assert merged.num_tokens == [3, 2, 1, 1]
    assert merged.token_ids == [5, 10, 11, 6, 8, 7, 9]
    assert merged.finish_reasons == [2, 0, 0, 0]
    assert outbox.num_merged == 2


def test_finish_reasons_stay_empty_while_nothing_ended():
    """Merged rows without an end have no finish column, as the contract wants it."""
    outbox = Outbox(100)
    outbox.put(1, 0, deltas([(1, 0, [5])]))
    outbox.put(2, 0, deltas([(1, 0, [6])]))
    assert outbox.take()[2].finish_reasons == []


def test_rejections_and_starts_are_kept():
    """Refusals and starts of several steps all arrive, and a frame without a step keeps the sampling clock."""
    outbox, error = Outbox(100), QueueFull("tokens", 1, 2, 1.0)
    outbox.put(1, 10, deltas([(1, 0, [5])], started=[(1, 16)]))
    outbox.put(1, 0, Deltas(rejections=[(4, error)]))
    outbox.put(2, 0, deltas([], started=[(2, 0)]))
    step_id, sampled_at, merged = outbox.take()
    assert (step_id, sampled_at) == (2, 10)
    assert merged.rejections == [(4, error)]
    assert (merged.started_handles, merged.num_cached_tokens) == ([1, 2], [16, 0])


def test_logprobs_follow_their_rows():
    """Entries are renumbered to the merged rows, and a row's tokens keep their order."""
    outbox = Outbox(100)
    first = LogprobColumns([1], [-1.0], [1], [2], [60, 61], [-1.0, -2.0])
    second = LogprobColumns([0], [-3.0], [4], [1], [80], [-3.0])
    outbox.put(1, 0, deltas([(1, 0, [5]), (2, 0, [6])], logprobs=first))
    outbox.put(2, 0, deltas([(2, 0, [8])], logprobs=second))
    merged = outbox.take()[2].logprobs
    assert merged.rows == [1, 1]
    assert merged.logprobs == [-1.0, -3.0]
    assert merged.ranks == [1, 4]
    assert merged.num_top == [2, 1]
    assert merged.top_token_ids == [60, 61, 80]
    assert merged.top_logprobs == [-1.0, -2.0, -3.0]


def test_too_many_unread_tokens_are_told():
    """Beyond the limit `put` answers False; what is taken counts no more."""
    outbox = Outbox(3)
    assert outbox.put(1, 0, deltas([(1, 0, [5, 6])]))
    assert not outbox.put(2, 0, deltas([(1, 0, [7, 8])]))
    outbox.take()
    assert outbox.put(3, 0, deltas([(1, 0, [9])]))
