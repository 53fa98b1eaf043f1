"""The simulated worker as the checker of the step protocol."""

import subprocess
import sys

import pytest

from quire_worker.executor import PoolDescription
from quire_worker.simulated.runner import SimulatedRunner, TokenRange
from quire_worker.simulated.tables import MalformedStep
from quire_worker.step import NewSequence, SamplingParams, StepPlan

POOL = PoolDescription(
    num_blocks=32, block_size=4, block_bytes=0, max_num_seqs=4, max_tokens_per_step=64, max_model_len=40
)


def make_runner(**tokens):
    return SimulatedRunner(POOL, TokenRange(**tokens))


def sequence(slot=0, tokens=(5, 6, 7), blocks=(1,), computed=0, seed=1, index=0, **sampling):
    return NewSequence(
        slot,
        list(tokens),
        len(tokens),
        computed,
        list(blocks),
        SamplingParams(seed=seed, **sampling),
        (),
        index,
    )


def step(step_id, rows, new=(), **columns):
    """A plan whose rows are (slot, num_new_tokens)."""
    return StepPlan(
        step_id, [slot for slot, _ in rows], [count for _, count in rows], new_sequences=list(new), **columns
    )


def generate(runner, num_tokens, first=None, first_step=1, chunk=None):
    """Token ids of one sequence run alone in slot 0, with a block for every 4 tokens."""
    first = first or sequence()
    num_known, tokens, step_id = len(first.token_ids), [], first_step
    chunk = chunk or num_known
    left = num_known - first.num_computed_tokens
    while left > 0:
        count = min(chunk, left)
        new = [first] if left == num_known - first.num_computed_tokens else []
        tokens += runner.execute(step(step_id, [(0, count)], new)).token_ids
        left -= count
        step_id += 1
    next_block = 20
    while len(tokens) < num_tokens:
        position = num_known + len(tokens) - 1
        is_full = position % POOL.block_size == 0
        columns = {"num_new_blocks": [1], "new_block_ids": [next_block]} if is_full else {}
        next_block += is_full
        tokens += runner.execute(step(step_id, [(0, 1)], **columns)).token_ids
        step_id += 1
    return tokens


def test_tokens_depend_on_seed_index_and_position_alone():
    """A sequence that is chunked, or recomputed with its output so far, samples the same tokens."""
    alone = generate(make_runner(), 6)
    assert generate(make_runner(), 6, chunk=1) == alone
    resumed = NewSequence(0, [5, 6, 7, *alone[:3]], 3, 0, [1, 2], SamplingParams(seed=1))
    assert generate(make_runner(), 3, resumed) == alone[3:]
    assert generate(make_runner(), 6, sequence(seed=2)) != alone
    assert generate(make_runner(), 6, sequence(index=1)) != alone


def test_tokens_stay_in_range():
    """Only ids of the range are sampled; the end of sequence comes only where it was asked for."""
    tokens = generate(make_runner(first_id=100, num_ids=10), 20)
    assert all(100 <= token < 110 for token in tokens)
    ended = generate(make_runner(eos_token_id=2, eos_after_tokens=4), 4)
    assert ended.index(2) == 3


def test_samples_only_when_all_known_tokens_are_computed():
    """A chunk that leaves tokens uncomputed brings no row; the last chunk does."""
    runner = make_runner()
    first = runner.execute(step(1, [(0, 2)], [sequence()]))
    assert (first.slots, first.token_ids) == ([], [])
    second = runner.execute(step(2, [(0, 1)]))
    assert second.slots == [0]


def test_logprobs_only_for_rows_that_asked():
    """Columns of log-probabilities name the asking row and hold as many tokens as it wanted."""
    runner = make_runner()
    plain, asking = sequence(0), sequence(1, blocks=(2,), num_logprobs=2)
    outcome = runner.execute(step(1, [(0, 3), (1, 3)], [plain, asking]))
    assert outcome.logprobs is not None
    assert outcome.logprobs.rows == [1]
    assert outcome.logprobs.num_top == [2]
    assert len(outcome.logprobs.top_token_ids) == 2


def test_shared_prefix_is_accepted_once_it_is_computed():
    """A block whose content is the new sequence's prefix may be shared; the block being written may not."""
    runner = make_runner()
    tokens = (5, 6, 7, 8, 9)
    runner.execute(step(1, [(0, 5)], [sequence(0, tokens, blocks=(1, 2))]))
    runner.execute(step(2, [(0, 1), (1, 1)], [sequence(1, tokens, blocks=(1, 3), computed=4)]))
    with pytest.raises(MalformedStep, match="block 3 is to be written"):
        runner.execute(step(3, [(2, 1)], [sequence(2, tokens, blocks=(1, 3), computed=4)]))


def test_prefix_that_is_not_there_is_refused():
    """Blocks that don't hold the keys and values of the prompt can't count as computed."""
    runner = make_runner()
    runner.execute(step(1, [(0, 5)], [sequence(0, (5, 6, 7, 8, 9), blocks=(1, 2))]))
    with pytest.raises(MalformedStep, match="does not hold its token 1"):
        runner.execute(step(2, [(1, 1)], [sequence(1, (5, 0, 7, 8, 9), blocks=(1, 3), computed=4)]))


def test_fork_needs_a_copy_of_the_tail():
    """A sibling that recomputes the last prompt token goes on only with the tail block copied."""
    tokens = (5, 6, 7, 8, 9, 10)
    for copies in ({}, {"copy_source_block_ids": [2], "copy_target_block_ids": [3]}):
        runner = make_runner()
        runner.execute(step(1, [(0, 6)], [sequence(0, tokens, blocks=(1, 2))]))
        plan = step(2, [(0, 1), (1, 1)], [sequence(1, tokens, blocks=(1, 3), computed=5, index=1)], **copies)
        if copies:
            assert runner.execute(plan).slots == [0, 1]
        else:
            with pytest.raises(MalformedStep, match="block 3 does not hold"):
                runner.execute(plan)


def test_released_slot_and_blocks_can_be_used_in_the_same_step():
    """Releases come before new sequences."""
    runner = make_runner()
    runner.execute(step(1, [(0, 3)], [sequence()]))
    outcome = runner.execute(step(2, [(0, 3)], [sequence(seed=9)], released_slots=[0]))
    assert outcome.slots == [0]


MALFORMED = {
    "step 5 came where 2 was due": step(5, [(0, 1)]),
    "slot 1 is empty": step(2, [(1, 1)]),
    "a slot is not in 0 to 3": step(2, [(7, 1)]),
    "a slot is in the step twice": step(2, [(0, 1), (0, 1)]),
    "no token to compute": step(2, [(0, 0)]),
    "2 new tokens, 1 is not computed": step(2, [(0, 2)]),
    "slot 0 of a new sequence is in use": step(2, [(0, 1)], [sequence(blocks=(9,))]),
    "slot 9, the tables have 4": step(2, [(0, 1)], [sequence(9, blocks=(9,))]),
    "block 40, the pool has 1 to 31": step(2, [(1, 3)], [sequence(1, blocks=(40,))]),
    "block 0, the pool has 1 to 31": step(2, [(1, 3)], [sequence(1, blocks=(0,))]),
    "block 1 is to be written while another": step(2, [(1, 3)], [sequence(1, blocks=(1,))]),
    "a block is in its table twice": step(2, [(1, 5)], [sequence(1, (1, 2, 3, 4, 5), blocks=(8, 8))]),
    "slot 1: 5 tokens in 1 blocks": step(2, [(1, 5)], [sequence(1, (1, 2, 3, 4, 5), blocks=(8,))]),
    "3 computed tokens of 3": step(2, [(1, 1)], [sequence(1, blocks=(8,), computed=3)]),
    "does not run in its first step": step(2, [(0, 1)], [sequence(1, blocks=(8,))]),
    "released slot 2 is empty": step(2, [(0, 1)], released_slots=[2]),
    "appended block 1 is held": step(2, [(0, 1)], num_new_blocks=[1], new_block_ids=[1]),
    "num_new_blocks add up to 2": step(2, [(0, 1)], num_new_blocks=[2], new_block_ids=[9]),
    "65 tokens in a step of at most 64": step(2, [(0, 65)]),
    "block 1 is copied over": step(2, [(0, 1)], copy_source_block_ids=[9], copy_target_block_ids=[1]),
    "1 copy sources for 0 targets": step(2, [(0, 1)], copy_source_block_ids=[9]),
}


@pytest.mark.parametrize("message", MALFORMED)
def test_malformed_steps_are_refused(message):
    """Each way to break the step contract is refused with the slot or block that shows it."""
    runner = make_runner()
    runner.execute(step(1, [(0, 3)], [sequence()]))
    with pytest.raises(MalformedStep, match=message):
        runner.execute(MALFORMED[message])


def test_decode_beyond_its_blocks_is_refused():
    """A decoding sequence whose table is full needs a block first."""
    runner = make_runner()
    runner.execute(step(1, [(0, 3)], [sequence()]))
    runner.execute(step(2, [(0, 1)]))
    with pytest.raises(MalformedStep, match="slot 0: 5 tokens in 1 blocks"):
        runner.execute(step(3, [(0, 1)]))


def test_growth_beyond_the_longest_sequence_is_refused():
    """A token that would be sampled at max_model_len is a planning error."""
    runner = make_runner()
    tokens = tuple(range(40))
    with pytest.raises(MalformedStep, match="grows beyond max_model_len 40"):
        runner.execute(step(1, [(0, 40)], [sequence(0, tokens, blocks=range(1, 11))]))


def test_reset_forgets_sequences_and_step_numbers():
    """After a reset any step number may begin, and all slots are empty."""
    runner = make_runner()
    runner.execute(step(7, [(0, 3)], [sequence()]))
    runner.reset()
    with pytest.raises(MalformedStep, match="slot 0 is empty"):
        runner.execute(step(1, [(0, 1)]))


def test_simulated_worker_imports_no_torch():
    """The simulated worker's process starts without torch and transformers."""
    code = "import quire_worker.simulated.main, sys; print({'torch', 'transformers'} & set(sys.modules))"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "set()"
    )
