"""The warm-up's steps are plans that a worker takes."""

import pytest

from quire_worker.cuda import warm_up
from quire_worker.slots import SlotLimits


class Counting:
    """A runner that keeps the plans."""

    def __init__(self):
        self.plans = []
        self.resets = 0

    def launch(self, plan):
        self.plans.append(plan)

    def finish(self, launched):
        return launched

    def reset(self):
        self.resets += 1


@pytest.mark.parametrize(("max_num_seqs", "max_tokens"), [(256, 8192), (4, 32)])
def test_steps_stay_within_the_limits(max_num_seqs, max_tokens):
    """No step has more sequences, tokens or longer sequences than the worker was sized for, and slots are released."""
    runner, limits = Counting(), SlotLimits(max_num_seqs, 256, 16, 2)
    assert warm_up.run_all(runner, limits, max_tokens) == len(runner.plans) > 0
    assert runner.resets == 1
    before = []
    for plan in runner.plans:
        assert list(plan.released_slots) == before
        assert len(plan.slots) == len(plan.new_sequences) <= max_num_seqs
        assert sum(plan.num_new_tokens) <= max_tokens
        assert all(len(sequence.token_ids) < 256 for sequence in plan.new_sequences)
        before = list(plan.slots)
