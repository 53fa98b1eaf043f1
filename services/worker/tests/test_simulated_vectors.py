"""The simulated worker answers vectors too: of the tokens alone, whatever the chunks."""

import numpy as np

from quire_worker.executor import PoolDescription
from quire_worker.pooling.params import PoolingParams, PoolingTask
from quire_worker.simulated.runner import SimulatedRunner, TokenRange
from quire_worker.step import NewSequence, SamplingParams, StepPlan

POOL = PoolDescription(
    num_blocks=32, block_size=4, block_bytes=0, max_num_seqs=4, max_tokens_per_step=64, max_model_len=40
)


def _pooled(tokens, task=PoolingTask.EMBED, **params):
    return NewSequence(
        0, tokens, len(tokens), 0, [1, 2], SamplingParams(), pooling=PoolingParams(task, **params)
    )


def _vector(tokens, chunks, **params):
    runner, new = SimulatedRunner(POOL, TokenRange(), embedding_size=8), [_pooled(tokens, **params)]
    for step_id, count in enumerate(chunks, 1):
        outcome = runner.execute(StepPlan(step_id, [0], [count], new_sequences=new))
        new = []
        assert outcome.slots == []
        assert (outcome.pooled is not None) == (step_id == len(chunks))
    return outcome.pooled.vectors[0]


def test_depends_on_the_tokens_alone():
    """Equal for any chunks, another for other tokens, of length 1; one token is a whole text too."""
    whole = _vector([5, 6, 7, 8, 9], [5])
    assert np.array_equal(whole, _vector([5, 6, 7, 8, 9], [2, 3]))
    assert not np.array_equal(whole, _vector([5, 6, 7, 8, 10], [5]))
    assert abs(np.linalg.norm(whole) - 1) < 1e-6
    assert len(_vector([5], [1])) == 8


def test_other_tasks():
    """Fewer dimensions, a vector per token, and one class between 0 and 1."""
    assert len(_vector([5, 6, 7], [3], num_dimensions=3)) == 3
    assert len(_vector([5, 6, 7], [3], task=PoolingTask.TOKEN_EMBED)) == 24
    (value,) = _vector([5, 6, 7], [3], task=PoolingTask.CLASSIFY)
    assert 0 <= value < 1


def test_others_go_on_beside_it():
    """A sequence that generates samples in the same steps what it samples alone."""
    plain = NewSequence(1, [1, 2], 2, 0, [3], SamplingParams(seed=3))
    alone = SimulatedRunner(POOL, TokenRange()).execute(StepPlan(1, [1], [2], new_sequences=[plain]))
    runner = SimulatedRunner(POOL, TokenRange())
    outcome = runner.execute(StepPlan(1, [0, 1], [3, 2], new_sequences=[_pooled([7, 8, 9]), plain]))
    assert (outcome.slots, outcome.token_ids) == ([1], alone.token_ids)
    assert outcome.pooled.slots == [0]
    runner.execute(StepPlan(2, [1], [1], released_slots=[0]))
