"""Order of admission and preemption under each policy, and the bounded queue's arithmetic."""

from __future__ import annotations

import pytest

from quire_scheduler.policies import FairPolicy, make_policy
from quire_scheduler.queue import MAX_RETRY_DELAY_S, MIN_RETRY_DELAY_S, DrainRate, WaitingQueue
from quire_scheduler.request import Request, Sequence, SequenceStatus

from .harness import Harness

NUM_ARRIVALS = iter(range(10**9))


def waiting(priority: int = 0, tenant: str = "", length: int = 4) -> Sequence:
    request = Request("g", 1, [1] * length, priority=priority, tenant=tenant)
    request.arrival_order = next(NUM_ARRIVALS)
    sequence = Sequence(request, 0, [], 100)
    sequence.move_to(SequenceStatus.WAITING)
    return sequence


def preempt(sequence: Sequence) -> Sequence:
    sequence.move_to(SequenceStatus.RUNNING)
    sequence.move_to(SequenceStatus.PREEMPTED)
    return sequence


def drain(policy) -> list[Sequence]:
    order = []
    while (sequence := policy.peek()) is not None:
        policy.remove(sequence)
        order.append(sequence)
    return order


def test_fcfs_ignores_priorities():
    """First come, first served, whatever the priority says."""
    policy = make_policy("fcfs")
    sequences = [waiting(priority=p) for p in (2, 0, 1)]
    for sequence in reversed(sequences):
        policy.push(sequence)
    assert drain(policy) == sequences
    assert max(sequences, key=policy.victim_key) is sequences[2]
    policy.charge("", 1, 1)


def test_priority_is_lower_first_then_age():
    """The lowest number goes first; the youngest of the highest number is the victim."""
    policy = make_policy("priority")
    first, second, third, fourth = (waiting(priority=p) for p in (1, 0, 1, 0))
    for sequence in (third, fourth, first, second):
        policy.push(sequence)
    assert max((first, second, third, fourth), key=policy.victim_key) is third
    assert drain(policy) == [second, fourth, first, third]


@pytest.mark.parametrize("name", ["fcfs", "priority", "fair"])
def test_a_preempted_sequence_comes_back_first(name):
    """What is preempted is admitted before everything younger in its priority."""
    policy = make_policy(name)
    old, young = waiting(), waiting()
    policy.push(young)
    policy.push(preempt(old))
    assert drain(policy) == [old, young]


@pytest.mark.parametrize("name", ["fcfs", "priority", "fair"])
def test_a_sequence_can_leave_from_the_middle_and_come_back(name):
    """Removal anywhere is exact, and pushing again after it counts once."""
    policy = make_policy(name)
    sequences = [waiting() for _ in range(5)]
    for sequence in sequences:
        policy.push(sequence)
    policy.remove(sequences[2])
    policy.remove(sequences[0])
    policy.push(sequences[2])
    assert drain(policy) == [sequences[1], sequences[2], sequences[3], sequences[4]]


def test_an_unknown_policy_is_refused():
    """The error lists the policies there are."""
    with pytest.raises(ValueError, match="one of fcfs, priority, fair, got lottery"):
        make_policy("lottery")


def test_fair_serves_the_tenant_with_the_least_service():
    """A tenant that has been served less goes first, however many requests another has queued before."""
    policy = FairPolicy()
    greedy = [waiting(tenant="greedy") for _ in range(4)]
    modest = waiting(tenant="modest")
    for sequence in [*greedy, modest]:
        policy.push(sequence)
    policy.remove(greedy[0])
    policy.charge("greedy", 10, 5)
    assert policy.counters == {"greedy": 20, "modest": 0}
    assert policy.peek() is modest


def test_fair_idling_saves_nothing_up():
    """A tenant that comes back is lifted to the least counter of those that wait."""
    policy = FairPolicy()
    busy = [waiting(tenant="busy") for _ in range(3)]
    for sequence in busy:
        policy.push(sequence)
    policy.charge("busy", 1000, 0)
    policy.push(waiting(tenant="back"))
    assert policy.counters["back"] == 1000
    for sequence in busy:
        policy.remove(sequence)
    policy.charge("busy", 500, 0)


def test_fair_lets_the_preempted_of_a_costly_tenant_come_back_first():
    """A preempted sequence goes before a tenant with less service: its own has paid for it already."""
    policy = FairPolicy()
    costly, cheap = waiting(tenant="costly"), waiting(tenant="cheap")
    policy.push(cheap)
    policy.charge("costly", 10_000, 0)
    policy.push(preempt(costly))
    assert drain(policy) == [costly, cheap]


def test_fair_forgets_tenants_that_lifting_would_overwrite():
    """The counters of tenants long gone do not pile up."""
    policy = FairPolicy()
    for i in range(policy.MAX_COUNTERS + 10):
        sequence = waiting(tenant=f"tenant-{i}")
        policy.push(sequence)
        policy.charge(f"tenant-{i}", 1, 0)
        policy.remove(sequence)
    assert len(policy.counters) <= policy.MAX_COUNTERS + 1


def test_fair_shares_an_engine_between_a_flood_and_a_trickle():
    """A tenant with a few requests is served long before another's flood, which came first, is through."""
    harness = Harness(policy="fair", max_num_seqs=2, num_blocks=64)
    flood = [harness.submit([1, 2, 3], tenant="flood", max_tokens=10) for _ in range(20)]
    trickle = [harness.submit([4, 5, 6], tenant="trickle", max_tokens=10) for _ in range(3)]
    while any(request.num_unfinished for request in trickle):
        harness.step()
    assert sum(request.num_unfinished for request in flood) >= 12
    harness.run()
    harness.check_ended()


def test_under_priority_the_urgent_run_first_and_the_others_are_preempted():
    """With memory for few, low-priority sequences are the ones preempted, and urgent ones never."""
    harness = Harness(policy="priority", num_blocks=14, max_num_batched_tokens=64, max_model_len=48)
    low = [harness.submit([1, 2, i], priority=5, max_tokens=30) for i in range(2)]
    urgent = [harness.submit([3, 4, i], priority=0, max_tokens=20) for i in range(2)]
    harness.run()
    assert all(request.sequences[0].num_preemptions == 0 for request in urgent)
    assert sum(request.sequences[0].num_preemptions for request in low) > 0
    harness.check_ended()


def test_the_last_free_block_goes_to_the_more_urgent():
    """When two sequences need a block and one is left, the urgent one runs, though the other stands before it."""
    harness = Harness(policy="priority", num_blocks=4, max_model_len=12, enable_prefix_caching=False)
    low = harness.submit([1, 2, 3], priority=1, max_tokens=9)
    harness.plan()
    urgent = harness.submit([4, 5, 6, 7], priority=0, max_tokens=8)
    harness.plan()
    harness.apply()
    plan = harness.plan()
    assert plan.slots == [urgent.sequences[0].slot]
    assert sum(plan.num_new_blocks) == 1
    harness.run()
    assert low.sequences[0].num_preemptions == 1
    harness.check_ended()


def test_the_retry_delay_follows_the_drain_rate():
    """Without a rate the shortest delay is told; with one, the time to admit half of what waits, within bounds."""
    queue = WaitingQueue(make_policy("fcfs"), 10, 10**9)
    assert queue.retry_delay_s() == MIN_RETRY_DELAY_S
    for _ in range(4):
        queue.push(waiting(length=500))
    for now_s in (0.0, 0.5, 1.0):
        queue.drain_rate.add(100, now_s)
    assert queue.drain_rate.tokens_per_s == 200
    assert queue.retry_delay_s() == 5.0
    queue.push(waiting(length=10**6))
    assert queue.retry_delay_s() == MAX_RETRY_DELAY_S


def test_the_drain_rate_is_averaged():
    """A later window counts as much as all before it."""
    rate = DrainRate()
    for now_s, tokens in ((0.0, 100), (1.0, 300), (2.0, 0)):
        rate.add(tokens, now_s)
    assert rate.tokens_per_s == 200


def test_an_empty_queue_takes_a_request_above_its_limits():
    """A single request larger than the limits is served rather than refused for ever."""
    queue = WaitingQueue(make_policy("fcfs"), 2, 10)
    queue.check_room(5, 100)
