"""Faults that users of such systems reported, one named test for each that the scheduler's domain can have."""

from __future__ import annotations

import random

import pytest

from quire_scheduler.draft import Draft
from quire_scheduler.errors import QueueFull
from quire_scheduler.request import FinishReason, SequenceStatus

from .harness import Harness
from .reference import EOS


def prompt(length: int, start: int = 0) -> list[int]:
    return [(start + i) % 10 for i in range(length)]


@pytest.mark.parametrize("num_plans", [0, 1, 2])
def test_fault_17_cancel_before_admission_leaves_nothing_pinned(num_plans):
    """A request cancelled while it waits, or while its first steps are in flight, gives every block back."""
    harness = Harness()
    request = harness.submit(prompt(20))
    for _ in range(num_plans):
        harness.plan()
    assert harness.abort(request)
    harness.run()
    assert harness.num_free() == harness.num_blocks - 1
    assert harness.core.load(harness.now_s).num_waiting == 0
    harness.check_ended()


def test_fault_19_a_hit_is_pinned_before_anything_is_allocated():
    """A cached prefix that is next in line for eviction is not handed out as a fresh block to its own finder."""
    harness = Harness(num_blocks=6)
    first = harness.submit(prompt(9), max_tokens=1)
    harness.run()
    # The pool has 5 blocks: 2 cached, 3 plain. The next request hits 2 and needs all the others.
    second = harness.submit(prompt(9) + prompt(10, start=3), max_tokens=1)
    harness.run()
    assert harness.started[("gateway", second.handle)] == 8
    assert harness.output(first) == harness.expected(first)
    assert harness.output(second) == harness.expected(second)


def test_fault_20_blocks_come_free_only_when_the_last_step_is_acknowledged():
    """An aborted sequence keeps its blocks until both steps in flight that touch them have come back."""
    harness = Harness()
    request = harness.submit(prompt(5))
    harness.plan()
    harness.plan()
    before = harness.num_free()
    harness.abort(request)
    assert harness.num_free() == before
    harness.apply()
    assert harness.num_free() == before
    harness.apply()
    assert harness.num_free() == harness.num_blocks - 1


def test_fault_20_a_full_pool_waits_for_the_acknowledgement():
    """A request that needs the blocks of one just aborted is admitted after the acknowledgement, not before."""
    harness = Harness(num_blocks=6)
    first = harness.submit(prompt(16), max_tokens=4)
    harness.plan()
    harness.abort(first)
    second = harness.submit(prompt(16, start=5), max_tokens=2)
    assert harness.plan() is None
    harness.apply()
    assert harness.plan() is not None
    harness.run()
    assert harness.output(second) == harness.expected(second)


def test_fault_21_a_block_is_shareable_only_after_its_step():
    """A request with the same prompt, planned while the first is in flight, computes the prompt itself."""
    harness = Harness()
    first = harness.submit(prompt(13), max_tokens=2)
    harness.plan()
    second = harness.submit(prompt(13), max_tokens=2)
    harness.plan()
    harness.apply()
    harness.apply()
    third = harness.submit(prompt(13), max_tokens=2)
    harness.run()
    assert [harness.started[("gateway", r.handle)] for r in (first, second, third)] == [0, 0, 12]


def test_fault_21_an_aborted_prefill_shares_only_what_was_computed():
    """What an aborted prefill had planned but the worker never computed is not found by the next request."""
    harness = Harness(max_num_batched_tokens=8, max_steps_in_flight=1)
    first = harness.submit(prompt(30))
    harness.plan()
    harness.abort(first)
    harness.apply()
    second = harness.submit(prompt(30), max_tokens=1)
    harness.run()
    assert harness.started[("gateway", second.handle)] == 8
    assert harness.output(second) == harness.expected(second)


def test_fault_23_a_preempted_sequence_on_cached_blocks_still_computes_a_token():
    """A preempted sequence whose whole context is cached comes back with at least one token to compute."""
    harness = Harness(num_blocks=12, max_num_seqs=2)
    requests = [harness.submit(prompt(15, start=i), max_tokens=16) for i in range(2)]
    harness.run()
    new_sequences = [new for plan in harness.plans for new in plan.new_sequences]
    came_back = [new for new in new_sequences if len(new.token_ids) > new.num_prompt_tokens]
    assert harness.core.stats.num_preemptions >= 1
    assert came_back
    assert all(new.num_computed_tokens < len(new.token_ids) for new in came_back)
    assert any(new.num_computed_tokens > 0 for new in came_back)
    for request in requests:
        assert harness.output(request) == harness.expected(request)


@pytest.mark.parametrize("length", [3, 4, 5, 8, 12, 13])
def test_fault_24_a_hit_gives_the_same_output_as_a_miss(length):
    """The output with a warm prefix cache equals the output of the first, cold run, also at block borders."""
    harness = Harness()
    cold = harness.submit(prompt(length), max_tokens=10, seed=5)
    harness.run()
    warm = harness.submit(prompt(length), max_tokens=10, seed=5)
    harness.run()
    assert harness.started[("gateway", warm.handle)] == (length - 1) // 4 * 4
    assert harness.output(warm) == harness.output(cold) == harness.expected(cold)


def test_fault_25_waiting_work_in_an_idle_engine_is_admitted_or_failed():
    """A request that outgrew the pool of the next worker fails with the numbers; the one behind it runs."""
    harness = Harness(num_blocks=14)
    large = harness.submit(prompt(40), max_tokens=5)
    small = harness.submit(prompt(6), max_tokens=5)
    harness.step()
    harness.lose_worker()
    harness.connect(num_blocks=6)
    harness.run()
    error = harness.rejections[("gateway", large.handle)]
    assert "at most 20" in str(error)
    assert "got 4" in str(error)
    assert large.sequences[0].finish_reason is FinishReason.ERROR
    assert harness.reason(small) is not None
    assert harness.num_free() == 5


def test_fault_25_a_large_head_of_the_queue_is_served_when_the_pool_empties():
    """The head of the queue is not overtaken for ever by small requests that would fit beside what runs."""
    harness = Harness(num_blocks=10, max_num_batched_tokens=64)
    harness.submit(prompt(5), max_tokens=8)
    harness.step()
    large = harness.submit(prompt(32), max_tokens=2)
    small = [harness.submit(prompt(3, start=i), max_tokens=8) for i in range(6)]
    harness.run()
    order = [h for (_, h) in harness.started]
    assert order.index(large.handle) < min(order.index(r.handle) for r in small)
    harness.check_ended()


def test_fault_26_the_preempted_go_to_the_front_and_the_oldest_always_runs():
    """Under memory pressure the oldest is never preempted, and a preempted one is admitted before newcomers."""
    harness = Harness(num_blocks=14, max_num_seqs=4, max_num_batched_tokens=64, max_model_len=52)
    requests = [harness.submit(prompt(8, start=i), max_tokens=40) for i in range(4)]
    harness.step()
    late = harness.submit(prompt(8, start=7), max_tokens=4)
    oldest = requests[0].sequences[0]
    while harness.core.num_requests:
        harness.step()
        if late.first_scheduled_s is not None and late.num_unfinished:
            assert all(r.sequences[0].status is not SequenceStatus.PREEMPTED for r in requests)
    assert harness.core.stats.num_preemptions > 0
    assert oldest.num_preemptions == 0
    harness.check_ended()


def test_fault_26_preemptions_are_bounded_and_every_step_makes_progress():
    """Twelve long sequences in a pool for two are each preempted a handful of times, not once per few tokens."""
    harness = Harness(num_blocks=41, max_num_seqs=12, max_num_batched_tokens=128, max_model_len=84)
    requests = [harness.submit(prompt(4, start=i), max_tokens=76, seed=i) for i in range(12)]
    harness.run()
    # Blocks of the longest sequence: 21. The bound by doubling headroom is log2(21) + 2, rounded up.
    assert max(r.sequences[0].num_preemptions for r in requests) <= 7
    assert sum(r.sequences[0].num_preemptions for r in requests) > 12
    total_outputs = sum(len(harness.output(r)) for r in requests)
    assert harness.core.stats.num_steps <= total_outputs
    harness.check_ended()


@pytest.mark.parametrize(("seed", "num_blocks", "num_older"), [(80, 45, 16), (59, 45, 16), (76, 30, 12)])
def test_fault_26_a_preempted_sequence_comes_back_with_room_to_stay(seed, num_blocks, num_older):
    """Beside older sequences that end one by one, the youngest is not let in and pushed out again at each end."""
    rng = random.Random(seed)
    harness = Harness(num_blocks=num_blocks, max_num_seqs=17, max_num_batched_tokens=128, max_model_len=124)
    lengths = [(rng.randint(1, 12), rng.randint(5, 100)) for _ in range(num_older)] + [(60, 60)]
    requests = [
        harness.submit(prompt(length, i), max_tokens=outputs, seed=i)
        for i, (length, outputs) in enumerate(lengths)
    ]
    harness.run()
    assert 1 <= max(request.sequences[0].num_preemptions for request in requests) <= 3
    harness.check_ended()


def test_fault_26_nothing_is_admitted_in_a_pass_that_preempted():
    """Blocks taken from a running sequence go to running ones, not to a newcomer in the same pass."""
    harness = Harness(
        policy="priority",
        num_blocks=8,
        max_num_batched_tokens=64,
        max_steps_in_flight=1,
        max_model_len=28,
        enable_prefix_caching=False,
    )
    running = [harness.submit(prompt(8, start=i), max_tokens=20, priority=1) for i in range(3)]
    harness.step()
    harness.submit(prompt(3), max_tokens=3, priority=0)
    preempting = []
    while harness.core.num_requests:
        before = harness.core.stats.num_preemptions
        plan = harness.plan()
        if harness.core.stats.num_preemptions > before:
            preempting.append(plan)
        if plan is not None:
            harness.apply()
    assert preempting
    assert all(not plan.new_sequences for plan in preempting)
    assert sum(request.sequences[0].num_preemptions for request in running) >= len(preempting)
    harness.check_ended()


def test_fault_26_a_preempted_sequence_waits_for_its_tokens_in_flight():
    """A preempted sequence is not let in again before the results of its earlier life are in: no token comes twice."""
    harness = Harness()
    request = harness.submit(prompt(6), max_tokens=8)
    harness.plan()
    harness.plan()
    sequence = request.sequences[0]
    engine = harness.core._engine
    engine.planner._preempt(Draft(step_id=3, now_s=0.0), sequence)
    harness.apply()
    assert harness.plan() is None
    harness.apply()
    plan = harness.plan()
    assert plan.new_sequences[0].token_ids == prompt(6) + harness.output(request)
    assert len(harness.output(request)) == 2
    harness.run()
    harness.check_ended()


def test_fault_27_another_version_of_an_adapter_never_reuses_its_blocks():
    """Prefixes are found only under the same adapter content and the same cache salt."""
    harness = Harness()
    variants = [
        {"adapter": "lora@1"},
        {"adapter": "lora@2"},
        {"adapter": ""},
        {"adapter": "lora@1", "cache_salt": "s"},
        {"adapter": "lora@1", "media_hashes": (b"image",)},
    ]
    for _ in range(2):
        for fields in variants:
            harness.submit(prompt(13), max_tokens=1, **fields)
            harness.run()
    cached = list(harness.started.values())
    assert cached == [0] * 5 + [12] * 5


def test_fault_45_the_queue_is_bounded_by_sequences_and_by_tokens():
    """Beyond either limit a request is refused with the limit, the value and a delay, and leaves no trace."""
    harness = Harness(max_waiting_sequences=3, max_waiting_tokens=50)
    harness.submit(prompt(10))
    with pytest.raises(QueueFull, match="1 waiting sequences, limit 3") as refused:
        harness.submit(prompt(10), n=3)
    assert refused.value.retry_delay_s >= 1.0
    harness.submit(prompt(10), n=2)
    with pytest.raises(QueueFull, match="limit 3"):
        harness.submit(prompt(2))
    by_tokens = Harness(max_waiting_tokens=50)
    by_tokens.submit(prompt(30))
    with pytest.raises(QueueFull, match="30 waiting tokens, limit 50"):
        by_tokens.submit(prompt(30))
    assert by_tokens.core.stats.num_refused_requests == 1
    assert by_tokens.core.num_requests == 1
    harness.run()
    harness.check_ended()


def test_fault_45_what_was_accepted_comes_back_however_full_the_queue_is():
    """Losing the worker puts running sequences back although the queue is at its limit."""
    harness = Harness(max_waiting_sequences=2)
    first = harness.submit(prompt(5), max_tokens=6)
    harness.step()
    harness.submit(prompt(5), max_tokens=6)
    harness.submit(prompt(5), max_tokens=6)
    harness.lose_worker()
    assert harness.core.load(harness.now_s).num_waiting == 3
    harness.connect()
    harness.run()
    assert harness.output(first) == harness.expected(first)
    harness.check_ended()


def test_fault_60_the_load_is_never_capped():
    """Waiting requests, tokens and time grow without a ceiling, so that an autoscaler can compare them."""
    harness = Harness(max_num_seqs=2, max_waiting_sequences=1000, max_waiting_tokens=10**6)
    for i in range(500):
        harness.submit(prompt(20, start=i), n=1, eos_token_ids=(EOS,))
    harness.now_s += 120.0
    load = harness.core.load(harness.now_s)
    assert load.num_waiting == 500
    assert load.num_waiting_tokens == 10_000
    assert load.oldest_wait_s == pytest.approx(120.0)
