"""Log-probabilities of prompts: each position once and in order, whatever happens to the sequence that computes it."""

from __future__ import annotations

import pytest

from quire.sampling.v1 import sampling_pb2
from quire_scheduler import codec
from quire_scheduler.errors import UnexpectedResult
from quire_scheduler.outbox import Outbox
from quire_scheduler.step import Deltas, LogprobColumns, PromptLogprobs, StepPlan

from .harness import Harness


def prompt(length: int, start: int = 0) -> list[int]:
    return [(start + i) % 10 for i in range(length)]


def scores(harness: Harness, request) -> list[float]:
    return harness.prompt_logprobs[(request.owner, request.handle)]


@pytest.mark.parametrize("n", [1, 3])
def test_every_position_comes_once_with_chunks(n):
    """A prompt that prefills in chunks is scored chunk by chunk, and once for all of its sequences."""
    harness = Harness(max_num_batched_tokens=8, long_prefill_token_threshold=5)
    request = harness.submit(prompt(23), n=n, max_tokens=3, num_prompt_logprobs=0)
    harness.step()
    assert 0 < len(scores(harness, request)) < 22
    harness.run()
    assert scores(harness, request) == [-float(token) for token in prompt(23)[1:]]
    assert sum(new.scores_prompt for plan in harness.plans for new in plan.new_sequences) == 1
    harness.check_ended()


def test_nothing_is_read_from_the_cache_but_the_blocks_may_be():
    """The prompt is computed although it is cached; whoever comes next reads what it left."""
    harness = Harness()
    harness.submit(prompt(13), max_tokens=1)
    harness.run()
    scored = harness.submit(prompt(13), max_tokens=1, num_prompt_logprobs=0)
    harness.run()
    after = harness.submit(prompt(13), max_tokens=1)
    harness.run()
    assert harness.started[("gateway", scored.handle)] == 0
    assert harness.started[("gateway", after.handle)] == 12


def test_skip_reading_prefix_cache_computes_the_whole_prompt():
    """A request may ask to compute its prompt whatever is cached."""
    harness = Harness()
    for skips, cached in ((False, 0), (True, 0), (False, 12)):
        request = harness.submit(prompt(13), max_tokens=1, skip_reading_prefix_cache=skips)
        harness.run()
        assert harness.started[("gateway", request.handle)] == cached


def test_a_lost_worker_repeats_no_position():
    """What was passed on before the loss is computed again but not told again."""
    harness = Harness(max_num_batched_tokens=8)
    request = harness.submit(prompt(30), n=2, max_tokens=4, num_prompt_logprobs=0)
    harness.step()
    told = len(scores(harness, request))
    harness.lose_worker()
    harness.connect()
    harness.run()
    assert 0 < told < 29 and len(scores(harness, request)) == 29
    harness.check_ended()


def test_a_preempted_sequence_scores_its_prompt_only_if_some_is_missing():
    """Once the prompt is scored, coming back after a preemption may use the cache and asks for no scores."""
    harness = Harness(num_blocks=14, max_num_seqs=4, max_num_batched_tokens=32)
    requests = [harness.submit(prompt(9, start), max_tokens=30, num_prompt_logprobs=0) for start in (0, 1, 2)]
    harness.run()
    assert harness.core.stats.num_preemptions
    again = [new for plan in harness.plans for new in plan.new_sequences if len(new.token_ids) > 9]
    assert again and not any(new.scores_prompt for new in again)
    assert all(len(scores(harness, request)) == 8 for request in requests)
    harness.check_ended()


def test_a_sibling_takes_over_when_the_first_sequence_is_aborted():
    """Aborting the sequence that computes the prompt ends neither the scores nor the siblings."""
    harness = Harness(max_num_batched_tokens=8)
    request = harness.submit(prompt(30), n=3, max_tokens=4, num_prompt_logprobs=0)
    harness.step()
    assert harness.abort_sequence(request, 0)
    harness.run()
    assert len(scores(harness, request)) == 29
    assert harness.output(request, 1) == harness.expected(request, 1)
    harness.check_ended()


def test_scores_of_a_slot_that_wants_none_are_an_error():
    """A worker that answers what nobody asked is found out, with nothing changed."""
    harness = Harness()
    harness.submit(prompt(5), max_tokens=2)
    harness.plan()
    result = harness.in_flight[0].result
    result.prompt_logprobs = PromptLogprobs([3], [1], LogprobColumns([], [-1.0], [1], [0]))
    with pytest.raises(UnexpectedResult, match=r"slots \{3\}"):
        harness.core.apply(result, 1.0)


def test_only_the_scoring_sequence_carries_the_wish_to_the_worker():
    """Sequences that fork, or come back, cross without num_prompt_logprobs; nothing else of the message changes."""
    harness = Harness(max_num_batched_tokens=32)
    message = sampling_pb2.SamplingParams(seed=3, num_prompt_logprobs=2, temperature=0.5)
    harness.submit(prompt(9), n=2, max_tokens=2, num_prompt_logprobs=2, attachment=message)
    plans = [harness.plan(), harness.plan()]
    sent = [codec.PlanEncoder().encode(plan).step.new_sequences[0].sampling for plan in plans]
    assert sent[0] == message and not sent[1].HasField("num_prompt_logprobs")
    assert (sent[1].seed, sent[1].temperature) == (3, 0.5)
    assert message.num_prompt_logprobs == 2


def test_unread_prompt_logprobs_are_joined_in_order():
    """A gateway that reads late gets every position, and the deltas that were put in first stay as they were."""
    outbox = Outbox(100)
    first = Deltas(
        prompt_logprobs=PromptLogprobs([1], [1], LogprobColumns([], [-1.0], [1], [1], [7], [-1.0]))
    )
    second = PromptLogprobs([1, 2], [2, 1], LogprobColumns([], [-2.0, -3.0], [1, 2], [0, 1], [8], [-3.0]))
    outbox.put(1, 0, first)
    outbox.put(2, 0, Deltas(handles=[1], sequence_indices=[0], num_tokens=[1], token_ids=[5]))
    outbox.put(3, 0, Deltas(prompt_logprobs=second))
    merged = outbox.take()[2].prompt_logprobs
    assert (merged.keys, merged.positions) == ([1, 1, 2], [1, 2, 1])
    assert (merged.columns.num_top, merged.columns.top_token_ids) == ([1, 0, 1], [7, 8])
    assert first.prompt_logprobs.positions == [1]


def test_unread_prompt_logprobs_count_as_unread():
    """A gateway that leaves scores unread is given up like one that leaves tokens unread."""
    outbox = Outbox(3)
    columns = LogprobColumns([], [-1.0, -1.0], [1, 1], [1, 1], [7, 8], [-1.0, -1.0])
    assert not outbox.put(1, 0, Deltas(prompt_logprobs=PromptLogprobs([1, 1], [1, 2], columns)))


def test_a_frame_carries_prompt_logprobs_by_handle():
    """The columns reach the gateway's message, and the frame after it does not repeat them."""
    encoder = codec.FrameEncoder()
    columns = LogprobColumns([], [-1.5], [4], [1], [7], [-0.5])
    rows = {"handles": [2], "sequence_indices": [0], "num_tokens": [1]}
    scored = Deltas(**rows, token_ids=[5], prompt_logprobs=PromptLogprobs([2], [3], columns))
    frame = encoder.encode(1, 0, scored, None).step_frame
    assert (list(frame.prompt_logprobs.handles), list(frame.prompt_logprobs.positions)) == ([2], [3])
    assert frame.prompt_logprobs.logprobs.ranks[0] == 4
    plain = encoder.encode(2, 0, Deltas(**rows, token_ids=[6]), None).step_frame
    assert not plain.HasField("prompt_logprobs")


def test_a_plan_without_wishes_has_no_scored_prompts():
    """Requests that ask for no prompt log-probabilities leave nothing to look at."""
    harness = Harness()
    harness.submit(prompt(9), max_tokens=2)
    plan = harness.plan()
    assert isinstance(plan, StepPlan) and plan.scored_prompts == {}
