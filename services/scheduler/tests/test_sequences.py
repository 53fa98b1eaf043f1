"""Siblings of a request, which share its prompt, and sequences that go on where another engine left them."""

from __future__ import annotations

from quire_scheduler.request import FinishReason

from .harness import Harness


def prompt(length: int, start: int = 0) -> list[int]:
    return [(start + i) % 10 for i in range(length)]


def test_siblings_share_the_prompts_blocks_and_copy_its_tail():
    """With n = 3 the prompt is computed once; siblings compute its last token only, in copied tail blocks."""
    harness = Harness(max_num_batched_tokens=32)
    request = harness.submit(prompt(11), n=3, max_tokens=6)
    first, second = harness.plan(), harness.plan()
    assert first.num_new_tokens == [11]
    assert second.num_new_tokens == [1, 1, 1]
    assert [new.num_computed_tokens for new in second.new_sequences] == [10, 10]
    source_table = first.new_sequences[0].block_ids
    assert all(new.block_ids[:2] == source_table[:2] for new in second.new_sequences)
    assert second.copy_source_block_ids == [source_table[2]] * 2
    assert second.copy_target_block_ids == [new.block_ids[2] for new in second.new_sequences]
    harness.run()
    for index in range(3):
        assert harness.output(request, index) == harness.expected(request, index)
    assert len({tuple(harness.output(request, index)) for index in range(3)}) == 3
    harness.check_ended()


def test_siblings_need_no_copy_when_the_last_prompt_token_opens_a_block():
    """A prompt of 9 tokens in blocks of 4 shares two full blocks; the third would hold only what is recomputed."""
    harness = Harness()
    harness.submit(prompt(9), n=2, max_tokens=3)
    harness.plan()
    second = harness.plan()
    assert second.copy_source_block_ids == []
    assert len(second.new_sequences[0].block_ids) == 3
    harness.run()
    harness.check_ended()


def test_a_sibling_without_room_waits_and_forks_later_or_prefills_itself():
    """With one slot, siblings run one after the other, after their source has gone, with the same output."""
    harness = Harness(max_num_seqs=1)
    request = harness.submit(prompt(11), n=3, max_tokens=5)
    harness.run()
    for index in range(3):
        assert harness.output(request, index) == harness.expected(request, index)
    harness.check_ended()


def test_a_source_that_ends_while_its_tail_is_copied_keeps_the_block_until_then():
    """The block a sibling's fork copies from is not reused before the copying step is acknowledged."""
    harness = Harness(max_num_batched_tokens=64, num_blocks=8)
    harness.submit(prompt(11), n=2, max_tokens=1)
    harness.plan()
    plan = harness.plan()
    assert plan.copy_source_block_ids
    source_block = plan.copy_source_block_ids[0]
    harness.apply()
    assert harness.core._engine.pool.ref_count(source_block) > 0
    harness.run()
    harness.check_ended()


def test_a_resumed_request_goes_on_after_its_tokens():
    """Output so far counts: the rest is what an uninterrupted run would have given, and max_tokens holds in all."""
    harness = Harness()
    whole = harness.submit(prompt(7), n=2, max_tokens=12, seed=4)
    harness.run()
    parts = {index: harness.output(whole, index)[:5] for index in range(2)}
    resumed = harness.submit(prompt(7), n=2, max_tokens=12, seed=4, resumed=parts)
    harness.run()
    for index in range(2):
        assert harness.output(resumed, index) == harness.output(whole, index)


def test_only_listed_sequences_of_a_resumed_request_run():
    """A request resumed with sequence 2 alone has one sequence, with index 2."""
    harness = Harness()
    request = harness.submit(prompt(7), n=3, max_tokens=6, resumed={2: [1]})
    harness.run()
    assert [sequence.index for sequence in request.sequences] == [2]
    assert harness.output(request, 2) == harness.expected(request, 2)
    harness.check_ended()


def test_a_resumed_sequence_that_had_ended_ends_at_once():
    """Resuming with a final stop token or with max_tokens tokens gives a finish row without a step."""
    harness = Harness()
    request = harness.submit(
        prompt(7), n=3, max_tokens=3, stop_token_ids=(9,), resumed={0: [1, 9], 1: [1, 2, 3], 2: [1]}
    )
    assert harness.reason(request, 0) is FinishReason.STOP
    assert harness.reason(request, 1) is FinishReason.LENGTH
    harness.run()
    assert harness.reason(request, 2) is not None
    assert harness.num_free() == harness.num_blocks - 1


def test_aborting_one_sequence_returns_its_blocks_and_leaves_the_others():
    """A sequence whose text has ended gives its blocks back at once; its siblings go on to their own ends."""
    harness = Harness(max_num_batched_tokens=32)
    request = harness.submit(prompt(11), n=3, max_tokens=24)
    for _ in range(6):
        harness.step()
    table = set(request.sequences[1].block_table)
    shared = {block for i in (0, 2) for block in request.sequences[i].block_table}
    assert harness.abort_sequence(request, 1)
    assert not harness.abort_sequence(request, 1)
    while harness.in_flight:
        harness.apply()
    assert table - shared and all(harness.core._engine.pool.ref_count(b) == 0 for b in table - shared)
    assert harness.core.num_running == 2
    harness.run()
    for index in (0, 2):
        assert harness.output(request, index) == harness.expected(request, index)
    assert harness.reason(request, 1) is None
    harness.check_ended()


def test_aborting_the_sequence_whose_prompt_the_others_wait_for_lets_them_go_on():
    """Held siblings are not left behind by the one that was computing their prompt, in whatever state it is."""
    for num_steps in (0, 1, 3):
        harness = Harness(max_num_batched_tokens=8)
        request = harness.submit(prompt(20), n=3, max_tokens=5)
        for _ in range(num_steps):
            harness.plan()
        assert harness.abort_sequence(request, 0)
        harness.run()
        for index in (1, 2):
            assert harness.output(request, index) == harness.expected(request, index)
        harness.check_ended()


def test_aborting_every_sequence_ends_the_request():
    """The last sequence's abort is the request's end; an index that is not there is ignored."""
    harness = Harness()
    request = harness.submit(prompt(5), n=2, max_tokens=20)
    harness.step()
    assert not harness.core.abort("gateway", request.handle, 0.0, 7)
    assert harness.abort_sequence(request, 0) and harness.abort_sequence(request, 1)
    assert harness.core.num_requests == 0
    harness.run()
    harness.check_ended()
