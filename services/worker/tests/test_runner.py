"""The runner on a real, tiny model: plans are checked, blocks copied, prompts scored, slots reused."""

import pytest
import torch
import transformers

from quire_worker.step import NewSequence, SamplingParams, StepPlan

_PROMPT = [(3 * i + 1) % 120 for i in range(37)]


@pytest.fixture(scope="module")
def model(tmp_path_factory, load_path):
    """A tiny Llama, as transformers has it and loaded by us."""
    folder = tmp_path_factory.mktemp("llama")
    torch.manual_seed(3)
    config = transformers.LlamaConfig(
        vocab_size=120, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=32, max_position_embeddings=128,
    )  # fmt: skip
    reference = transformers.LlamaForCausalLM(config).eval()
    reference.save_pretrained(folder)
    return reference, load_path(folder)


@pytest.fixture
def runner(model):
    return model[1].runner(num_blocks=30, max_num_seqs=4, max_tokens=64)


def _new(slot=0, tokens=_PROMPT, blocks=(1, 2, 3), computed=0, **sampling):
    return NewSequence(
        slot, tokens, len(tokens), computed, list(blocks), SamplingParams(**{"temperature": 0.0} | sampling)
    )


def test_two_plans_in_a_row_need_no_token(runner, planner, job):
    """The token sampled in one step is known in the next, which says only that one token is computed."""
    expected = planner(runner).run(job(_PROMPT, 3))[0]
    steps = [StepPlan(0, [0], [37], new_sequences=[_new()]), StepPlan(1, [0], [1]), StepPlan(2, [0], [1])]
    assert [runner.execute(plan).token_ids for plan in steps] == [[token] for token in expected]


def test_a_partial_prefill_samples_nothing(runner):
    """A step that leaves known tokens uncomputed brings no token for the slot."""
    assert runner.execute(StepPlan(0, [0], [20], new_sequences=[_new()])).slots == []
    assert runner.execute(StepPlan(1, [0], [17])).slots == [0]


def test_a_step_of_nothing(runner):
    """A plan without rows runs and brings nothing."""
    outcome = runner.execute(StepPlan(0, [], []))
    assert (outcome.slots, outcome.token_ids) == ([], [])


def test_a_fork_from_a_copied_block(runner, planner, job):
    """A sequence that starts on copied and shared blocks with its last prompt token alone gives the same tokens."""
    expected = planner(runner).run(job(_PROMPT, 4))[0]
    runner.execute(StepPlan(0, [0], [37], new_sequences=[_new()]))
    fork = _new(1, blocks=(1, 2, 9), computed=36)
    forked = StepPlan(1, [1], [1], copy_source_block_ids=[3], copy_target_block_ids=[9], new_sequences=[fork])
    got = runner.execute(forked).token_ids
    # The original overwrites its own tail; the fork must not see it.
    runner.execute(StepPlan(2, [0], [1]))
    for step in range(3, 6):
        got += runner.execute(StepPlan(step, [1], [1])).token_ids
    assert got == expected


def test_released_slots_are_reused_in_the_same_plan(runner, planner, job):
    """Releases come first: a slot may be given to a new sequence by the plan that releases it."""
    other = [(11 * i) % 120 for i in range(20)]
    expected = planner(runner).run(job(other, 1))[0]
    runner.execute(StepPlan(0, [2], [37], new_sequences=[_new(2)]))
    plan = StepPlan(1, [2], [20], released_slots=[2], new_sequences=[_new(2, other, (1, 2))])
    assert runner.execute(plan).token_ids == expected


def test_blocks_arrive_as_they_are_needed(runner, planner, job):
    """Blocks appended by columns continue the table in order."""
    expected = planner(runner).run(job(_PROMPT, 14))[0]
    got = runner.execute(StepPlan(0, [0], [37], new_sequences=[_new()])).token_ids
    for step in range(1, 14):
        blocks = {"num_new_blocks": [1], "new_block_ids": [7]} if step == 12 else {}
        got += runner.execute(StepPlan(step, [0], [1], **blocks)).token_ids
    assert got == expected


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (StepPlan(1, [1], [1]), "slot 1 runs but is empty"),
        (StepPlan(1, [0], [2]), "2 new tokens"),
        (StepPlan(1, [0], [0]), "0 new tokens"),
        (StepPlan(1, [0, 0], [1, 1]), "distinct"),
        (StepPlan(1, [9], [1]), r"0\.\.3"),
        (StepPlan(1, [], [], released_slots=[1]), "released but empty"),
        (StepPlan(1, [0], [1], new_sequences=[_new()]), "still occupied"),
        (StepPlan(1, [1], [1], new_sequences=[_new(1, computed=37)]), "num_computed_tokens 37"),
        (StepPlan(1, [1], [37], new_sequences=[_new(1, blocks=(1, 99, 2))]), "block id"),
        (StepPlan(1, [1], [37], new_sequences=[_new(1, blocks=(1, 2))]), "do not fit its 2 blocks"),
        (StepPlan(1, [0], [1], num_new_blocks=[2], new_block_ids=[5]), "block counts"),
        (StepPlan(1, [], [], copy_source_block_ids=[1], copy_target_block_ids=[0]), "block id 0"),
        (StepPlan(1, [1], [1], new_sequences=[_new(1, tokens=[120], blocks=(4,))]), r"0\.\.119"),
    ],
)
def test_a_plan_that_can_not_be_is_refused(runner, plan, message):
    """A plan that contradicts what the worker knows is a ValueError that says how."""
    runner.execute(StepPlan(0, [0], [37], new_sequences=[_new()]))
    with pytest.raises(ValueError, match=message):
        runner.execute(plan)


def test_too_many_tokens_are_refused(runner):
    """A step above the buffers' size is refused before anything is written."""
    long = [1] * 70
    with pytest.raises(ValueError, match="limits are 4 and 64"):
        runner.execute(StepPlan(0, [0], [70], new_sequences=[_new(0, long, (1, 2, 3, 4, 5))]))


def test_reset_empties_every_slot(runner):
    """After a reset slots are free and nothing of the old sampling state is left."""
    runner.execute(StepPlan(0, [0], [37], new_sequences=[_new(logit_bias={5: 100.0})]))
    runner.reset()
    assert runner.execute(StepPlan(1, [0], [37], new_sequences=[_new()])).token_ids != [5]


@pytest.mark.parametrize("chunk", [37, 10])
def test_prompt_logprobs(model, runner, chunk):
    """Every prompt token but the first is scored once, by the step that computed the token before it."""
    reference, _ = model
    with torch.no_grad():
        scores = torch.log_softmax(reference(torch.tensor([_PROMPT])).logits[0].double(), dim=-1)
    pending, left, outcomes = [_new(num_prompt_logprobs=2)], 37, []
    while left:
        count = min(chunk, left)
        left -= count
        outcomes.append(runner.execute(StepPlan(len(outcomes), [0], [count], new_sequences=pending)))
        pending = []
    found = [outcome.prompt_logprobs for outcome in outcomes]
    assert [len(part.positions) for part in found] == ([36] if chunk == 37 else [10, 10, 10, 6])
    assert [position for part in found for position in part.positions] == list(range(1, 37))
    assert {slot for part in found for slot in part.slots} == {0}
    expected = [float(scores[i, _PROMPT[i + 1]]) for i in range(36)]
    assert [value for part in found for value in part.logprobs.logprobs] == pytest.approx(expected, abs=1e-4)
    top = [token_id for part in found for token_id in part.logprobs.top_token_ids]
    assert top == scores[:36].topk(2).indices.flatten().tolist()
    assert all(part.logprobs.rows == [] for part in found)


def test_prompt_logprobs_never_make_more_logits_than_the_head_has_rows_for(model, runner):
    """A chunk longer than max_num_seqs is scored in pieces: the head's buffers are never outgrown."""
    sizes, original = [], runner._forward.logits_of

    def logits_of(rows):
        sizes.append(len(rows))
        return original(rows)

    runner._forward.logits_of = logits_of
    runner.execute(StepPlan(0, [0], [37], new_sequences=[_new(num_prompt_logprobs=0)]))
    assert sum(sizes) == 36 and max(sizes) <= 4


def test_times_are_reported(runner):
    """A step says how long its phases took and when its tokens were known."""
    outcome = runner.execute(StepPlan(0, [0], [37], new_sequences=[_new()]))
    assert outcome.times.forward_us > 0 and outcome.sampled_at_unix_us > 1_600_000_000_000_000
