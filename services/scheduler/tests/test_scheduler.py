"""The facade: life of requests, stops, deadlines, aborts, drain, worker loss, wrong results."""

from __future__ import annotations

from dataclasses import replace

import pytest

from quire_scheduler.errors import Draining, IllegalTransition, InvalidRequest, UnexpectedResult
from quire_scheduler.events import AllCleared, BlockRemoved, BlockStored
from quire_scheduler.request import TRANSITIONS, FinishReason, Request, Sequence, SequenceStatus
from quire_scheduler.scheduler import SchedulerCore

from .harness import Harness
from .reference import next_token


def prompt(length: int, start: int = 0) -> list[int]:
    return [(start + i) % 10 for i in range(length)]


def test_two_steps_are_in_flight_and_the_second_needs_no_result():
    """The second step is planned before the first's result: one more token, and no third one."""
    harness = Harness()
    harness.submit(prompt(5), max_tokens=8)
    first, second = harness.plan(), harness.plan()
    assert (first.num_new_tokens, second.num_new_tokens) == ([5], [1])
    assert len(first.new_sequences) == 1
    assert not second.new_sequences
    assert harness.plan() is None
    harness.apply()
    assert harness.plan().num_new_tokens == [1]


def test_a_new_block_is_announced_exactly_when_the_last_one_is_full():
    """A decoding row brings a block id only in the step whose token opens a new block."""
    harness = Harness(max_steps_in_flight=1)
    harness.submit(prompt(3), max_tokens=8)
    counts = []
    for _ in range(7):
        plan = harness.step()
        counts.append(sum(plan.num_new_blocks))
        assert len(plan.new_block_ids) == counts[-1]
    assert counts == [0, 0, 1, 0, 0, 0, 1]


def test_a_stop_token_ends_a_sequence_and_wastes_one_token():
    """The token sampled after the end, in the step in flight by then, is counted as wasted and never emitted."""
    harness = Harness()
    request = harness.submit(prompt(5), max_tokens=30, stop_token_ids=tuple(range(11)))
    harness.run()
    assert len(harness.output(request)) == 1
    assert harness.reason(request) is FinishReason.STOP
    assert harness.core.stats.num_wasted_tokens == 1
    harness.check_ended()


def test_the_longest_length_wastes_nothing():
    """A sequence that ends by max_tokens is not planned beyond it."""
    harness = Harness()
    request = harness.submit(prompt(5), max_tokens=7)
    harness.run()
    assert len(harness.output(request)) == 7
    assert harness.reason(request) is FinishReason.LENGTH
    assert harness.core.stats.num_wasted_tokens == 0
    assert sum(plan.num_tokens for plan in harness.plans) == 5 + 6


def test_the_context_length_ends_a_sequence():
    """Without max_tokens a sequence goes on until prompt and output fill the context."""
    harness = Harness(max_model_len=20)
    request = harness.submit(prompt(5))
    harness.run()
    assert len(harness.output(request)) == 15
    assert harness.reason(request) is FinishReason.LENGTH


def test_ignore_eos_leaves_the_users_stop_tokens():
    """ignore_eos disables the model's end tokens, not stop_token_ids."""
    harness = Harness()
    first = next_token(prompt(5), 0, 0)
    ignoring = harness.submit(prompt(5), max_tokens=9, eos_token_ids=(first,), ignore_eos=True)
    stopping = harness.submit(
        prompt(5), max_tokens=9, eos_token_ids=(first,), stop_token_ids=(first,), ignore_eos=True
    )
    harness.run()
    assert len(harness.output(ignoring)) == 9
    assert harness.output(stopping) == [first]


def test_min_tokens_keeps_an_end_token_from_ending():
    """Ending tokens among the first min_tokens tokens do not end the sequence."""
    harness = Harness()
    request = harness.submit(prompt(5), max_tokens=30, min_tokens=6, stop_token_ids=tuple(range(11)))
    harness.run()
    assert len(harness.output(request)) == 7
    assert harness.reason(request) is FinishReason.STOP


@pytest.mark.parametrize("num_steps", range(7))
def test_a_deadline_ends_a_request_in_every_state(num_steps):
    """Waiting, prefilling, decoding, held or in flight: after its deadline a request ends once, told to its owner."""
    harness = Harness(max_num_batched_tokens=8, max_num_seqs=2)
    request = harness.submit(prompt(20), n=2, deadline_s=1000.0)
    other = harness.submit(prompt(3), max_tokens=4)
    for _ in range(num_steps):
        harness.step()
    harness.now_s = 999.0
    assert harness.expire() == 0
    assert harness.core.next_deadline_s() == 1000.0
    harness.now_s = 1000.0
    assert harness.expire() == 1
    assert harness.expire() == 0
    assert harness.reason(request, 0) is FinishReason.DEADLINE
    assert harness.reason(request, 1) is FinishReason.DEADLINE
    assert harness.core.next_deadline_s() is None
    harness.run()
    assert harness.output(other) == harness.expected(other)
    harness.check_ended()


def test_abort_is_idempotent_and_unknown_handles_are_no_error():
    """Aborting twice, after the end, or what never was answers False and changes nothing."""
    harness = Harness()
    request = harness.submit(prompt(4), max_tokens=2)
    assert harness.abort(request)
    assert not harness.abort(request)
    assert not harness.core.abort("gateway", 99, 0.0)
    assert not harness.core.abort("stranger", request.handle, 0.0)
    harness.run()
    harness.check_ended()


def test_an_owner_that_leaves_takes_its_requests_along():
    """All of one owner's requests end, without news for it; another owner's go on."""
    harness = Harness()
    leaving = [harness.submit(prompt(5), owner="a", deadline_s=0.5) for _ in range(2)]
    staying = harness.submit(prompt(5), owner="b", max_tokens=5)
    harness.step()
    harness.core.expire(1.0)
    leaving.append(harness.submit(prompt(6), owner="a", deadline_s=5.0, handle=9))
    assert harness.core.abort_owner("a", harness.now_s) == 1
    assert harness.core.abort_owner("a", harness.now_s) == 0
    assert "a" not in harness.core.take_news()
    harness.run()
    assert harness.output(staying) == harness.expected(staying)


def test_losing_the_worker_keeps_every_sequence_and_its_order():
    """Running sequences wait again, oldest first, with all tokens; the index starts a new epoch; outputs go on."""
    harness = Harness(max_num_seqs=3, max_num_batched_tokens=64)
    requests = [harness.submit(prompt(6, start=i), max_tokens=9) for i in range(5)]
    for _ in range(3):
        harness.step()
    epoch = harness.core.events.epoch
    harness.lose_worker()
    assert not harness.core.has_worker
    assert harness.core.num_running == 0
    assert harness.core.load(harness.now_s).num_total_blocks == 0
    assert harness.core.num_steps_in_flight == 0
    assert harness.events[-1] == AllCleared(epoch + 1)
    assert harness.core.reset_prefix_cache() == (0, 0)
    assert harness.core.prefix_snapshot() == []
    harness.connect()
    plan = harness.plan()
    assert [new.request.handle for new in plan.new_sequences] == [r.handle for r in requests[:3]]
    assert all(len(new.token_ids) > new.num_prompt_tokens for new in plan.new_sequences)
    harness.run()
    harness.check_ended()
    assert harness.core.stats.num_worker_losses == 1
    with pytest.raises(ValueError, match="attached"):
        harness.core.worker_ready(8)


def test_requests_wait_for_the_first_worker():
    """Without a worker requests are accepted and nothing is planned."""
    harness = Harness()
    harness.lose_worker()
    request = harness.submit(prompt(6), max_tokens=3)
    assert harness.plan() is None
    harness.connect()
    harness.run()
    assert harness.output(request) == harness.expected(request)


def test_draining_refuses_the_new_and_finishes_the_old():
    """After begin_drain submits raise; is_drained turns true when the last step is back."""
    harness = Harness()
    harness.submit(prompt(6), max_tokens=3)
    harness.step()
    harness.core.begin_drain()
    with pytest.raises(Draining):
        harness.submit(prompt(3))
    assert not harness.core.is_drained
    harness.run()
    assert harness.core.is_drained


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"n": 0}, "n must be 1 to 128, got 0"),
        ({"n": 129}, "n must be 1 to 128, got 129"),
        ({"prompt_token_ids": []}, "at least 1 token, got 0"),
        ({"prompt_token_ids": [1] * 64}, "prompt_token_ids must be at most 63 tokens .* got 64"),
        ({"max_tokens": 0}, "max_tokens must be at least 1, got 0"),
        ({"resumed": {3: [1]}}, "sequence_index must be 0 to 0, got 3"),
        ({"resumed": {0: [1] * 60}}, "at most 59 tokens after the prompt, got 60"),
        ({"handle": 77}, "handle must be unique"),
    ],
)
def test_requests_that_can_never_run_are_refused_with_the_numbers(fields, message):
    """A refusal names the field, the limit and the value, and keeps nothing."""
    harness = Harness()
    harness.submit([1], handle=77, max_tokens=1)
    with pytest.raises(InvalidRequest, match=message):
        harness.submit(**({"prompt": fields.pop("prompt_token_ids", prompt(5))} | fields))
    assert harness.core.num_requests == 1


def test_a_prompt_larger_than_the_pool_is_refused_with_the_pools_numbers():
    """With 4 usable blocks of 4 tokens, 16 prompt tokens leave no room for an output token."""
    harness = Harness(num_blocks=5)
    assert harness.core.max_total_tokens == 16
    with pytest.raises(InvalidRequest, match="at most 15 tokens"):
        harness.submit(prompt(16))
    request = harness.submit(prompt(15))
    harness.run()
    assert len(harness.output(request)) == 1


def test_a_result_that_answers_another_step_changes_nothing():
    """Wrong step id, slots or counts raise UnexpectedResult; the right result still applies afterwards."""
    harness = Harness()
    request = harness.submit(prompt(5), max_tokens=2)
    harness.plan()
    good = harness.in_flight[0].result
    for bad in (
        replace(good, step_id=99),
        replace(good, slots=[3]),
        replace(good, num_tokens=[2]),
        replace(good, token_ids=[]),
    ):
        with pytest.raises(UnexpectedResult):
            harness.core.apply(bad, 0.0)
    harness.run()
    with pytest.raises(UnexpectedResult, match="no step is in flight"):
        harness.core.apply(good, 0.0)
    assert harness.output(request) == harness.expected(request)


def test_results_of_several_owners_are_split_with_their_logprobs():
    """Each owner gets its own rows and log-probabilities only, renumbered."""
    harness = Harness(max_num_batched_tokens=64)
    requests = [
        harness.submit(
            prompt(5, start=i), owner=f"g{i % 2}", num_logprobs=1 if i != 1 else None, max_tokens=4
        )
        for i in range(4)
    ]
    harness.plan()
    news = harness.apply()
    assert news["g0"].handles == [requests[0].handle, requests[2].handle]
    assert news["g0"].logprobs.rows == [0, 1]
    assert news["g1"].logprobs.rows == [1]
    harness.run()
    harness.check_ended()


def test_logprobs_of_an_ended_sequence_are_dropped():
    """Rows of an aborted request are cut out of the log-probabilities too."""
    harness = Harness(max_num_batched_tokens=64)
    gone, stays = (harness.submit(prompt(5, start=i), num_logprobs=1, max_tokens=4) for i in range(2))
    harness.plan()
    harness.abort(gone)
    news = harness.apply()["gateway"]
    assert news.handles == [stays.handle]
    assert news.logprobs.rows == [0]
    harness.run()


def test_block_events_follow_the_index():
    """Stored and removed events, numbered without gaps, rebuild exactly what the snapshot holds."""
    harness = Harness(num_blocks=10)
    for start in range(6):
        harness.submit(prompt(13, start=start), max_tokens=6, seed=start)
        harness.run()
    known = {}
    for number, event in enumerate(harness.events, start=1):
        assert event.number == number
        if isinstance(event, BlockStored):
            assert event.parent_hash == b"" or event.block_hash != event.parent_hash
            known[event.block_hash] = event.parent_hash
        else:
            assert isinstance(event, BlockRemoved)
            del known[event.block_hash]
    snapshot = harness.core.prefix_snapshot()
    assert {event.block_hash: event.parent_hash for event in snapshot} == known
    assert {event.number for event in snapshot} == {harness.core.events.number}
    assert any(isinstance(event, BlockRemoved) for event in harness.events)


def test_resetting_the_prefix_cache_spares_what_is_in_use():
    """Free cached blocks are forgotten; those that a running sequence holds stay, and are counted."""
    harness = Harness()
    harness.submit(prompt(13), max_tokens=1)
    harness.run()
    harness.submit(prompt(9, start=5), max_tokens=20)
    for _ in range(3):
        harness.step()
    assert harness.core.reset_prefix_cache() == (3, 2)
    again = harness.submit(prompt(13), max_tokens=1)
    harness.run()
    assert harness.started[("gateway", again.handle)] == 0


def test_prompt_logprobs_read_no_prefix_from_the_cache():
    """Log-probabilities of the prompt need every prompt token computed."""
    harness = Harness()
    for logprobs in (None, 0):
        request = harness.submit(prompt(13), max_tokens=1, num_prompt_logprobs=logprobs)
        harness.run()
        assert harness.started[("gateway", request.handle)] == 0


def test_every_transition_outside_the_table_raises():
    """The state table has no way out of FINISHED and no shortcut; all other moves raise."""
    for source in SequenceStatus:
        for target in SequenceStatus:
            sequence = Sequence(Request("g", 1, [1]), 0, [], 8)
            sequence.status = source
            if target in TRANSITIONS[source]:
                sequence.move_to(target)
                assert sequence.status is target
            else:
                with pytest.raises(IllegalTransition, match=f"{source.value} -> {target.value}"):
                    sequence.move_to(target)
    assert "held" in repr(Sequence(Request("g", 1, [1]), 0, [], 8))


def test_a_chunked_prompt_does_not_hold_up_decodes():
    """While a long prompt prefills in chunks, every decoding sequence has its token in every step."""
    harness = Harness(max_num_batched_tokens=8, long_prefill_token_threshold=5)
    decoding = harness.submit(prompt(4), max_tokens=30)
    harness.step()
    harness.submit(prompt(40, start=3), max_tokens=3)
    slot = decoding.sequences[0].slot
    chunks = []
    for _ in range(8):
        plan = harness.step()
        assert plan.num_new_tokens[plan.slots.index(slot)] == 1
        chunks.append(plan.num_tokens - 1)
    assert chunks == [5] * 8


def test_core_without_observer_or_sink():
    """Observer and event sink are optional."""
    harness = Harness()
    core = SchedulerCore(harness.config)
    core.worker_ready(8)
    core.submit(Request("g", 1, prompt(9)), 0.0)
    harness.core = core
    harness.requests.clear()
    harness.outputs[("g", 1, 0)] = []
    while core.num_requests:
        harness.step()
    assert len(harness.outputs[("g", 1, 0)]) == core.max_total_tokens - 9
