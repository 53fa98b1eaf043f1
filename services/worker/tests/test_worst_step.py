"""The largest step is run and measured before the pool is sized."""

from __future__ import annotations

import numpy as np
import pytest

from quire_worker import model_executor
from quire_worker.executor import ModelSource, PoolRequest, PoolTooLarge
from quire_worker.model_executor import ModelExecutor, ModelExecutorSettings
from quire_worker.sizing import StepSizes
from quire_worker.worst_step import PeakMemory, worst_step_bytes

_MIB = 1 << 20


class Recorder:
    """A runner that keeps its plan and touches memory."""

    def __init__(self, limits, touched_bytes=0):
        self.limits, self.plan, self._touched_bytes = limits, None, touched_bytes

    def execute(self, plan):
        self.plan = plan
        np.ones(self._touched_bytes, dtype=np.uint8)


@pytest.fixture(scope="module")
def loaded(smollm2_path):
    """An executor with SmolLM2."""
    executor = ModelExecutor(ModelExecutorSettings(num_threads=2))
    executor.load(ModelSource(str(smollm2_path)), lambda progress: None)
    yield executor
    executor.close()


def test_peak_counts_what_is_freed_again():
    """Memory that was taken and given back within the block is in the figure."""
    with PeakMemory() as memory:
        np.ones(64 * _MIB, dtype=np.uint8)
    assert 56 * _MIB <= memory.rise_bytes <= 80 * _MIB


@pytest.mark.parametrize(
    ("max_num_seqs", "max_tokens", "max_model_len", "lengths"),
    [
        (4, 512, 1024, [5, 505, 1, 1]),
        (1, 2, 1024, [2]),
        (4, 4, 1024, [1, 1, 1, 1]),
        (3, 512, 64, [4, 63, 63]),
        (8, 16, 1024, [9, 1, 1, 1, 1, 1, 1, 1]),
    ],
)
def test_the_step_is_as_large_as_the_limits_allow(max_num_seqs, max_tokens, max_model_len, lengths):
    """Every sequence samples with log-probabilities, tokens fill the budget, and none is longer than may be."""
    runners = []
    sizes = StepSizes(16, max_num_seqs, max_tokens, max_model_len)
    worst_step_bytes(lambda limits: runners.append(Recorder(limits)) or runners[-1], sizes)
    plan, limits = runners[0].plan, runners[0].limits
    assert (limits.max_num_seqs, limits.max_model_len, limits.num_blocks) == (max_num_seqs, max_model_len, 2)
    assert plan.num_new_tokens == lengths
    assert [len(sequence.token_ids) for sequence in plan.new_sequences] == lengths
    assert all(sequence.sampling.num_logprobs for sequence in plan.new_sequences)
    assert plan.new_sequences[0].sampling.num_prompt_logprobs


def test_the_figure_is_what_the_step_touched():
    """Bytes that the runner touches while it runs are counted."""
    sizes = StepSizes(16, 4, 64, 1024)
    assert worst_step_bytes(lambda limits: Recorder(limits, 48 * _MIB), sizes) >= 40 * _MIB


def test_a_step_too_long_to_be_run_is_extended():
    """Of a step of very many tokens only a part is run, and what each further token takes is added."""
    plans = []

    class PerToken(Recorder):
        def execute(self, plan):
            plans.append(sum(plan.num_new_tokens))
            np.ones(plans[-1] * _MIB // 8, dtype=np.uint8)

    found = worst_step_bytes(PerToken, StepSizes(16, 4, 4096, 8192))
    assert plans == [512, 256]
    assert found == pytest.approx(512 * _MIB, rel=0.1)


def test_a_larger_step_leaves_less_for_the_pool(loaded, monkeypatch):
    """The measured step is taken from what is free before the pool gets its share, and the logits are part of it."""
    free = 400 * _MIB
    monkeypatch.setattr(model_executor, "_free_bytes", lambda device: free)
    measured = {}
    for max_num_seqs in (32, 128):
        request = PoolRequest(max_num_seqs=max_num_seqs, max_tokens_per_step=128, max_model_len=2048)
        measured[max_num_seqs] = (loaded._step_bytes(request), loaded.allocate(request).num_blocks)
    # Logits of 96 sequences more, float32.
    assert measured[128][0] - measured[32][0] > 96 * 49152 * 4
    assert measured[128][1] < measured[32][1]


def test_a_step_that_leaves_no_room_is_refused_with_the_numbers(loaded, monkeypatch):
    """The refusal names what is free, what the largest step takes, and how large that step is."""
    monkeypatch.setattr(model_executor, "_free_bytes", lambda device: 8 * _MIB)
    with pytest.raises(
        PoolTooLarge, match=r"8 MiB are free, the largest step \(64 sequences, 512 tokens\) takes \d+ MiB"
    ):
        loaded.allocate(PoolRequest(max_model_len=512))
