"""The worker's translation between messages and its own data."""

from quire.sampling.v1 import sampling_pb2
from quire.worker.v1 import step_pb2
from quire_worker import codec
from quire_worker.step import LogprobColumns, PromptLogprobs, SamplingParams, StepOutcome, StepTimes


def test_unset_sampling_has_the_contract_s_defaults():
    """Nothing set is temperature 1 and everything off."""
    assert codec.sampling_from_message(sampling_pb2.SamplingParams()) == SamplingParams()


def test_zero_is_a_value():
    """Temperature 0, top_p 0 and zero log-probabilities are kept, not read as unset."""
    message = sampling_pb2.SamplingParams(temperature=0, num_logprobs=0, min_p=0, ignore_eos=True)
    message.logit_bias[7] = -100
    sampling = codec.sampling_from_message(message)
    assert (sampling.temperature, sampling.num_logprobs, sampling.ignore_eos) == (0, 0, True)
    assert sampling.logit_bias == {7: -100}


def test_every_sampling_field_is_carried():
    """Each field of the message that the worker must know arrives with its value."""
    values = {
        "temperature": 0.5, "top_p": 0.25, "top_k": 3, "min_p": 0.125, "presence_penalty": 1.5,
        "frequency_penalty": -0.5, "repetition_penalty": 1.25, "seed": 1 << 63, "num_logprobs": 4,
        "num_prompt_logprobs": 5, "min_tokens": 6, "ignore_eos": True, "stop_token_ids": (8, 9),
        "allowed_token_ids": (10,),
    }  # fmt: skip
    message = sampling_pb2.SamplingParams(max_tokens=1, logprob_token_ids=[5, 3], **values)
    for token_ids in ([1, 2], [3]):
        message.bad_token_sequences.add(token_ids=token_ids)
    sampling = codec.sampling_from_message(message)
    assert {name: getattr(sampling, name) for name in values} == values
    assert (sampling.bad_token_sequences, sampling.logprob_token_ids) == (((1, 2), (3,)), (5, 3))


def test_plan_is_carried_column_by_column():
    """A step with every kind of column arrives unchanged."""
    message = step_pb2.StepRequest(
        step_id=4, released_slots=[1], copy_source_block_ids=[2], copy_target_block_ids=[3], slots=[0, 5],
        num_new_tokens=[1, 7], num_new_blocks=[0, 1], new_block_ids=[9],
    )  # fmt: skip
    message.new_sequences.add(
        slot=5, token_ids=[1, 2, 3], num_prompt_tokens=2, num_computed_tokens=1, block_ids=[8],
        eos_token_ids=[2], sequence_index=6,
    )  # fmt: skip
    plan = codec.plan_from_message(message)
    assert (plan.step_id, plan.slots, plan.num_new_tokens) == (4, [0, 5], [1, 7])
    assert (plan.num_new_blocks, plan.new_block_ids, plan.released_slots) == ([0, 1], [9], [1])
    assert (plan.copy_source_block_ids, plan.copy_target_block_ids) == ([2], [3])
    (sequence,) = plan.new_sequences
    assert (sequence.slot, sequence.token_ids, sequence.block_ids) == (5, [1, 2, 3], [8])
    assert (sequence.num_prompt_tokens, sequence.num_computed_tokens) == (2, 1)
    assert (sequence.eos_token_ids, sequence.sequence_index) == ((2,), 6)


def test_outcome_is_carried_with_times_and_logprobs():
    """Tokens, log-probabilities, phase times and the clock go out; a long idle time is capped, not wrapped."""
    columns = LogprobColumns([0], [-0.5], [1], [2], [7, 8], [-0.5, -1.5])
    outcome = StepOutcome(3, [5], [7], columns, times=StepTimes(1, 2, 3, 1 << 40), sampled_at_unix_us=99)
    result = codec.outcome_to_message(outcome).result
    assert (result.step_id, list(result.slots), list(result.token_ids)) == (3, [5], [7])
    assert (result.prepare_us, result.forward_us, result.sample_us, result.idle_us) == (1, 2, 3, 0xFFFFFFFF)
    assert (result.sampled_at_unix_us, list(result.num_tokens)) == (99, [])
    assert list(result.logprobs.top_token_ids) == [7, 8]


def test_prompt_logprobs_go_out_with_slots_and_positions():
    """A chunk's scores name their slot and position; the column that indexes rows stays empty."""
    columns = LogprobColumns([], [-0.5, -2.0], [1, 4], [1, 0], [7], [-0.5])
    outcome = StepOutcome(3, [], [], prompt_logprobs=PromptLogprobs([5, 5], [16, 17], columns))
    found = codec.outcome_to_message(outcome).result.prompt_logprobs
    assert (list(found.slots), list(found.positions)) == ([5, 5], [16, 17])
    assert (list(found.logprobs.logprobs), list(found.logprobs.ranks)) == ([-0.5, -2.0], [1, 4])
    assert (list(found.logprobs.rows), list(found.logprobs.num_top)) == ([], [1, 0])
