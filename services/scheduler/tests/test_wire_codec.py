"""The scheduler's translation between messages and its own data."""

import grpc
import pytest

from quire.sampling.v1 import sampling_pb2
from quire.scheduler.v1 import load_pb2, serve_pb2
from quire.worker.v1 import step_pb2
from quire_scheduler import codec, errors
from quire_scheduler.request import Request, SamplingParams
from quire_scheduler.step import Deltas, LogprobColumns, NewSequence, StepPlan


def submit(**fields):
    message = serve_pb2.Submit(handle=3, request_id="r", prompt_token_ids=[1, 2], **fields)
    message.sampling.seed = 5
    return message


def test_submit_becomes_a_request():
    """Every field arrives; the timeout becomes a point on the engine's clock; the sampling message is kept."""
    message = submit(
        n=2, priority=-1, tenant="t", cache_salt="s", eos_token_ids=[9], traceparent="00-a-b-01",
        resumed=[serve_pb2.ResumedSequence(sequence_index=1, output_token_ids=[7])],
    )  # fmt: skip
    message.timeout.FromMilliseconds(1500)
    message.sampling.max_tokens = 0
    message.sampling.temperature = 0
    request = codec.request_from_submit(message, "gateway", 100.0)
    assert (request.owner, request.handle, request.request_id, request.n) == ("gateway", 3, "r", 2)
    assert (request.prompt_token_ids, request.resumed) == ([1, 2], {1: [7]})
    assert (request.priority, request.tenant, request.cache_salt) == (-1, "t", "s")
    assert request.traceparent == "00-a-b-01"
    assert request.deadline_s == 101.5
    assert (request.sampling.max_tokens, request.sampling.temperature) == (0, 0)
    assert request.sampling.eos_token_ids == (9,)
    assert request.attachment == message.sampling


def test_unset_fields_have_defaults():
    """No n is one sequence, no timeout is no deadline, unset sampling is the contract's defaults."""
    request = codec.request_from_submit(submit(), "gateway", 0.0)
    assert (request.n, request.deadline_s) == (1, None)
    assert request.sampling == SamplingParams(seed=5)


def test_seed_must_be_set():
    """The gateway draws the seed: without one a migrated request could not go on as it was."""
    message = submit()
    message.sampling.ClearField("seed")
    with pytest.raises(errors.InvalidRequest, match="seed"):
        codec.request_from_submit(message, "gateway", 0.0)


def test_repeated_columns_are_encoded_as_new_ones():
    """The encoder reuses its message while the columns are the same objects; what it makes is as if made anew."""
    request = Request("owner", 1, [1, 2, 3], attachment=sampling_pb2.SamplingParams(seed=4))
    new = NewSequence(2, [1, 2, 3], 3, 0, [5], SamplingParams(eos_token_ids=(9,)), 0, "", request)
    slots, ones = [0, 1], [1, 1]
    plans = [
        StepPlan(1, [0, 1, 2], [1, 1, 3], new_sequences=[new]),
        StepPlan(2, slots, ones),
        StepPlan(3, slots, ones, num_new_blocks=[0, 1], new_block_ids=[8]),
        StepPlan(4, slots, ones, released_slots=[2], copy_source_block_ids=[3], copy_target_block_ids=[4]),
        StepPlan(5, slots, ones),
        StepPlan(6, [1], [1]),
    ]
    encoder = codec.PlanEncoder()
    for plan in plans:
        fresh = codec.PlanEncoder().encode(plan)
        assert encoder.encode(plan) == fresh
        assert fresh.step.step_id == plan.step_id
        assert list(fresh.step.slots) == plan.slots
        assert list(fresh.step.new_block_ids) == plan.new_block_ids
        assert list(fresh.step.released_slots) == plan.released_slots
        assert len(fresh.step.new_sequences) == len(plan.new_sequences)
    sequence = codec.PlanEncoder().encode(plans[0]).step.new_sequences[0]
    assert (sequence.slot, list(sequence.token_ids), list(sequence.block_ids)) == (2, [1, 2, 3], [5])
    assert (sequence.sampling.seed, list(sequence.eos_token_ids)) == (4, [9])


def test_repeated_frames_are_encoded_as_new_ones():
    """Frames of an unchanged batch differ in tokens, step and load alone; a frame with an end is made anew."""
    handles, indices, ones = [1, 2], [0, 0], [1, 1]
    logprobs = LogprobColumns([0], [-1.0], [1], [0])
    cases = [
        Deltas(handles, indices, ones, [5, 6]),
        Deltas(handles, indices, ones, [7, 8]),
        Deltas(handles, indices, ones, [9, 10], finish_reasons=[0, 1]),
        Deltas(handles, indices, ones, [11, 12], logprobs=logprobs),
        Deltas(handles, indices, ones, [13, 14]),
        Deltas(handles, indices, ones, [15, 16], started_handles=[2], num_cached_tokens=[16]),
        Deltas([2], [0], [1], [17]),
    ]
    encoder = codec.FrameEncoder()
    for step_id, deltas in enumerate(cases):
        load = load_pb2.Load(num_running=step_id)
        frame = encoder.encode(step_id, 100 + step_id, deltas, load).step_frame
        assert frame == codec.FrameEncoder().encode(step_id, 100 + step_id, deltas, load).step_frame
        assert (frame.step_id, frame.sampled_at_unix_us, frame.load) == (step_id, 100 + step_id, load)
        assert list(frame.token_ids) == deltas.token_ids
        assert list(frame.handles) == deltas.handles
        assert list(frame.finish_reasons) == deltas.finish_reasons
        assert list(frame.started_handles) == deltas.started_handles
        assert frame.HasField("logprobs") == (deltas.logprobs is not None)


def test_result_arrives_with_logprobs_and_times():
    """Columns, log-probabilities and phase times of a result are taken over."""
    message = step_pb2.StepResult(
        step_id=2,
        slots=[3],
        token_ids=[4],
        sampled_at_unix_us=5,
        prepare_us=6,
        forward_us=7,
        sample_us=8,
        idle_us=9,
    )
    assert codec.result_from_message(message).logprobs is None
    message.logprobs.rows.append(0)
    message.logprobs.ranks.append(2)
    result = codec.result_from_message(message)
    assert (result.step_id, result.slots, result.token_ids, result.num_tokens) == (2, [3], [4], [])
    assert (result.sampled_at_unix_us, result.prepare_us, result.forward_us) == (5, 6, 7)
    assert (result.sample_us, result.idle_us) == (8, 9)
    assert (result.logprobs.rows, result.logprobs.ranks) == ([0], [2])


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.QueueFull("tokens", 1, 2, 3.0), grpc.StatusCode.RESOURCE_EXHAUSTED),
        (errors.InvalidRequest("n", "1 to 128", 200), grpc.StatusCode.INVALID_ARGUMENT),
        (errors.Draining(), grpc.StatusCode.UNAVAILABLE),
        (errors.UnexpectedResult("slot 3"), grpc.StatusCode.INTERNAL),
    ],
)
def test_domain_errors_have_statuses(error, code):
    """Each thing the domain refuses has its code; a bug of ours tells the client nothing of the inside."""
    status = codec.rejection_to_message(7, error).status
    assert status.code == code.value[0]
    assert ("slot" in status.message) is False
