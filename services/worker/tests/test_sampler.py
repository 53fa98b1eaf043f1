"""The sampler: masks, penalties, filters, draws and log-probabilities against plain references."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from quire_worker.sampling import adjust
from quire_worker.sampling.draw import KernelDraw, draw_in_numpy
from quire_worker.sampling.logprobs import LogprobCollector
from quire_worker.sampling.sampler import Sampler
from quire_worker.step import NewSequence, SamplingParams

_VOCAB = 50


class FixedLogits:
    """A forward pass whose logits are given."""

    def __init__(self, rows):
        self._rows = np.array(rows, dtype=np.float32)

    def greedy(self):
        return self._rows.argmax(axis=1).astype(np.int32)

    def logits(self):
        return self._rows

    def logits_of(self, rows):
        return self._rows[rows]


def _sequence(slot, sampling, prompt=(1, 2, 3), output=(), eos=(), index=0):
    return NewSequence(slot, [*prompt, *output], len(prompt), 0, [1], sampling, eos, index)


def _row(seed=0):
    return np.random.default_rng(seed).standard_normal(_VOCAB).astype(np.float32)


def _sample(params, row, **sequence):
    sampler = Sampler(_VOCAB, 1)
    sampler.admit(_sequence(0, params, **sequence))
    return sampler.sample(np.array([0]), FixedLogits([row]))


def test_greedy_takes_the_largest_logit():
    """Temperature 0 is the argmax, with or without other wishes."""
    row = _row()
    assert _sample(SamplingParams(temperature=0.0), row).token_ids.tolist() == [row.argmax()]
    assert _sample(SamplingParams(temperature=0.0, num_logprobs=0), row).token_ids.tolist() == [row.argmax()]


def test_logit_bias_moves_the_choice():
    """A bias is added to the raw logit."""
    assert _sample(SamplingParams(temperature=0.0, logit_bias={7: 100.0}), _row()).token_ids[0] == 7


def test_penalties_equal_a_plain_reference():
    """repetition counts prompt and output; frequency and presence count the output alone."""
    params = SamplingParams(repetition_penalty=1.3, frequency_penalty=0.4, presence_penalty=0.7)
    prompt, output, row = [1, 2, 2, 9], [2, 5, 5, 5], _row()
    expected = row.copy()
    for token in {*prompt, *output}:
        expected[token] = expected[token] / 1.3 if expected[token] > 0 else expected[token] * 1.3
    for token in set(output):
        expected[token] -= 0.4 * output.count(token) + 0.7
    counts = adjust.TokenCounts(_VOCAB, np.array(prompt), np.array(output[:-1]))
    counts.add(output[-1])
    counts.penalise(row, params)
    np.testing.assert_allclose(row, expected, rtol=1e-6)


def test_penalties_follow_the_sampled_tokens():
    """What the worker has sampled itself counts as output in the next step."""
    row = np.zeros(_VOCAB, dtype=np.float32)
    row[[3, 8]] = 2.0, 1.5
    sampler = Sampler(_VOCAB, 1)
    sampler.admit(_sequence(0, SamplingParams(temperature=0.0, presence_penalty=1.0), prompt=[3]))
    drawn = [int(sampler.sample(np.array([0]), FixedLogits([row])).token_ids[0]) for _ in range(3)]
    assert drawn == [3, 8, 3]


def test_min_tokens_masks_eos_and_stop_ids():
    """Before min_tokens neither eos nor stop ids are sampled; then they are."""
    row = np.zeros(_VOCAB, dtype=np.float32)
    row[[4, 6, 9]] = 5.0, 4.0, 3.0
    params = SamplingParams(temperature=0.0, min_tokens=2, stop_token_ids=(6,))
    sampler = Sampler(_VOCAB, 1)
    sampler.admit(_sequence(0, params, eos=(4,)))
    drawn = [int(sampler.sample(np.array([0]), FixedLogits([row])).token_ids[0]) for _ in range(3)]
    assert drawn == [9, 9, 4]


def test_min_tokens_counts_the_output_so_far():
    """A sequence that comes back with output is past min_tokens already."""
    row = np.zeros(_VOCAB, dtype=np.float32)
    row[4] = 5.0
    params = SamplingParams(temperature=0.0, min_tokens=2)
    assert _sample(params, row, eos=(4,), output=(7, 7)).token_ids[0] == 4


def test_ignore_eos_leaves_eos_unmasked_and_stop_ids_masked():
    """With ignore_eos an eos id is a token like any other; the client's own stop ids stay masked."""
    row = np.zeros(_VOCAB, dtype=np.float32)
    row[[6, 4]] = 5.0, 4.0
    params = SamplingParams(temperature=0.0, min_tokens=1, ignore_eos=True, stop_token_ids=(6,))
    assert _sample(params, row, eos=(4,)).token_ids[0] == 4


def test_allowed_token_ids():
    """Nothing else can be sampled, at any temperature; a mask that leaves nothing is not applied."""
    params = SamplingParams(allowed_token_ids=(11, 12), seed=1)
    assert {int(_sample(replace(params, seed=s), _row()).token_ids[0]) for s in range(40)} == {11, 12}
    only_eos = SamplingParams(temperature=0.0, allowed_token_ids=(4,), min_tokens=3)
    assert _sample(only_eos, _row(), eos=(4,)).token_ids[0] == 4


@pytest.mark.parametrize(
    ("params", "kept"),
    [
        (SamplingParams(top_k=2), [0, 1]),
        (SamplingParams(top_k=100), [0, 1, 2, 3]),
        (SamplingParams(top_p=0.5), [0]),
        (SamplingParams(top_p=0.7), [0, 1]),
        (SamplingParams(top_p=0.81), [0, 1, 2]),
        (SamplingParams(min_p=0.45), [0, 1]),
        (SamplingParams(top_k=3, top_p=0.6), [0, 1]),
        (SamplingParams(temperature=0.01, top_p=0.9), [0]),
    ],
)
def test_filters(params, kept):
    """top_k, top_p and min_p keep the tokens that their definitions name."""
    row = np.log(np.array([0.5, 0.3, 0.1, 0.1], dtype=np.float32))
    row[3] -= 1e-4
    adjust.scale_and_filter(row, params)
    assert np.flatnonzero(np.isfinite(row)).tolist() == kept


@pytest.mark.parametrize("top_p", [0.05, 0.5, 0.95, 0.9999])
@pytest.mark.parametrize("spread", [0.1, 3.0])
def test_nucleus_of_a_large_vocabulary(top_p, spread):
    """However many tokens the nucleus takes, it is the smallest set that reaches top_p."""
    row = (np.random.default_rng(4).standard_normal(5000) * spread).astype(np.float32)
    probabilities = torch.softmax(torch.from_numpy(row).double(), 0).numpy()
    adjust.scale_and_filter(row, SamplingParams(top_p=top_p))
    kept = np.sort(probabilities[np.isfinite(row)])
    assert kept.sum() >= top_p - 1e-6 and kept[1:].sum() < top_p + 1e-6
    assert probabilities[~np.isfinite(row)].max(initial=0.0) <= kept[0]


def test_draws_follow_temperature_and_filters():
    """Over many positions tokens come as often as the filtered softmax says (chi-square, fixed seed)."""
    count, params = 4000, SamplingParams(temperature=0.7, top_k=6, seed=99)
    row = _row(3)
    filtered = row.copy()
    adjust.scale_and_filter(filtered, params)
    draw = KernelDraw(count, _VOCAB, 2)
    drawn = draw(
        np.tile(filtered, (count, 1)),
        np.full(count, 99, np.uint64),
        np.zeros(count, np.int64),
        np.arange(count),
    )
    expected = torch.softmax(torch.from_numpy(filtered).double(), 0).numpy() * count
    kept = expected > 0
    observed = np.bincount(drawn, minlength=_VOCAB)
    assert observed[~kept].sum() == 0 and kept.sum() == 6
    # 5 degrees of freedom: passed by one run in a thousand, and this one is fixed.
    assert (((observed - expected)[kept]) ** 2 / expected[kept]).sum() < 20.5


def test_kernel_and_numpy_draw_the_same_tokens():
    """A worker without the kernels continues a sampled sequence as one with them would."""
    logits = np.random.default_rng(1).standard_normal((20, 1000)).astype(np.float32)
    keys = (np.arange(20, dtype=np.uint64) << np.uint64(40), np.arange(20) % 3, np.arange(20) * 7)
    assert (KernelDraw(20, 1000, 2)(logits.copy(), *keys) == draw_in_numpy(logits.copy(), *keys)).all()


def test_a_draw_depends_on_its_own_key_alone():
    """The same seed, index and position draw the same token in any slot, beside anything, after a re-admission."""
    params, row = SamplingParams(seed=5), _row(1)
    alone = int(_sample(params, row).token_ids[0])
    sampler = Sampler(_VOCAB, 4)
    for slot, other in enumerate((SamplingParams(seed=8), SamplingParams(temperature=0.0), params)):
        sampler.admit(_sequence(slot, other))
    assert (
        int(sampler.sample(np.array([1, 2, 0]), FixedLogits([_row(2), row, _row(4)])).token_ids[1]) == alone
    )
    second = int(sampler.sample(np.array([2]), FixedLogits([row])).token_ids[0])
    assert int(_sample(params, row, output=(alone,)).token_ids[0]) == second


def test_sequences_of_one_request_differ():
    """The same seed with another sequence index draws other tokens."""
    draws = {
        i: [int(_sample(SamplingParams(seed=s), _row(), index=i).token_ids[0]) for s in range(8)]
        for i in (0, 1)
    }
    assert draws[0] != draws[1]


def test_logprobs_are_those_of_the_raw_logits():
    """Log-probabilities, rank and best tokens come from the unmodified logits."""
    row = _row(5)
    outcome = _sample(SamplingParams(temperature=0.0, num_logprobs=3, logit_bias={7: 100.0}), row)
    expected = torch.log_softmax(torch.from_numpy(row).double(), dim=0)
    columns = outcome.logprobs
    assert columns.logprobs == pytest.approx([float(expected[7])], abs=1e-6)
    assert columns.ranks == [int((row > row[7]).sum()) + 1]
    assert columns.top_token_ids == expected.topk(3).indices.tolist()
    assert columns.top_logprobs == pytest.approx(expected.topk(3).values.tolist(), abs=1e-6)


def test_logprobs_of_equal_logits():
    """Among equal logits the smaller ids are listed first, and no more than were asked for."""
    collector = LogprobCollector()
    collector.add(0, np.zeros(10, dtype=np.float32), 9, 3)
    columns = collector.columns()
    assert (columns.top_token_ids, columns.ranks) == ([0, 1, 2], [1])


def test_only_rows_that_asked_have_logprobs():
    """The columns name the rows they belong to."""
    sampler = Sampler(_VOCAB, 3)
    for slot, params in enumerate(
        (SamplingParams(temperature=0.0), SamplingParams(temperature=0.0, num_logprobs=1))
    ):
        sampler.admit(_sequence(slot, params))
    columns = sampler.sample(np.array([0, 1]), FixedLogits([_row(), _row(1)])).logprobs
    assert (columns.rows, columns.num_top) == ([1], [1])


@pytest.mark.parametrize(
    "change",
    [{"stop_token_ids": (50,)}, {"logit_bias": {-1: 1.0}}, {"allowed_token_ids": (1000,)}],
)
def test_ids_outside_the_vocabulary_are_refused(change):
    """An id that no logit belongs to is a ValueError."""
    with pytest.raises(ValueError, match=r"0\.\.49"):
        _sample(SamplingParams(**change), _row())


def test_a_bad_sequence_loses_only_its_last_token_and_only_after_the_others():
    """The last token of a bad sequence is masked after its others, in the output alone; single tokens always are."""
    row = np.zeros(_VOCAB, dtype=np.float32)
    row[[5, 6, 7, 8]] = 5.0, 4.0, 3.0, 2.0
    params = SamplingParams(temperature=0.0, bad_token_sequences=((5,), (6, 6), (6, 7, 7)))
    sampler = Sampler(_VOCAB, 1)
    sampler.admit(_sequence(0, params, prompt=(6, 6, 6)))
    drawn = [int(sampler.sample(np.array([0]), FixedLogits([row])).token_ids[0]) for _ in range(6)]
    assert drawn == [6, 7, 6, 7, 6, 7]


def test_bad_sequences_go_on_behind_resumed_output():
    """A sequence that comes back with output is followed from there."""
    row = np.zeros(_VOCAB, dtype=np.float32)
    row[[6, 7]] = 5.0, 4.0
    params = SamplingParams(temperature=0.0, bad_token_sequences=((9, 9, 6),))
    assert _sample(params, row, output=(9, 9)).token_ids[0] == 7
    assert _sample(params, row, output=(9,)).token_ids[0] == 6


def test_bad_tokens_and_min_tokens_mask_together():
    """Both masks hold at once, and neither leaves a row without a token."""
    row = np.zeros(_VOCAB, dtype=np.float32)
    row[[4, 5, 6]] = 5.0, 4.0, 3.0
    params = SamplingParams(temperature=0.0, min_tokens=1, bad_token_sequences=((5,),))
    assert _sample(params, row, eos=(4,)).token_ids[0] == 6
    only_bad = SamplingParams(temperature=0.0, allowed_token_ids=(5,), bad_token_sequences=((5,),))
    assert _sample(only_bad, row).token_ids[0] == 5


def test_logprob_token_ids_replace_the_most_probable():
    """Just the named tokens come, in the order asked for, beside the sampled one."""
    row = _row()
    chosen = _sample(SamplingParams(temperature=0.0, logprob_token_ids=(9, 2, 30)), row)
    scores = torch.log_softmax(torch.from_numpy(row).double(), dim=0)
    assert chosen.logprobs.top_token_ids == [9, 2, 30]
    assert chosen.logprobs.top_logprobs == pytest.approx(scores[[9, 2, 30]].tolist(), abs=1e-5)
    assert (chosen.logprobs.num_top, chosen.logprobs.ranks) == ([3], [1])


def test_the_whole_vocabulary_can_be_asked_for():
    """As many log-probabilities as there are tokens: all of them, most probable first, summing to one."""
    columns = _sample(SamplingParams(temperature=0.0, num_logprobs=_VOCAB), _row()).logprobs
    assert sorted(columns.top_token_ids) == list(range(_VOCAB))
    assert columns.top_logprobs == sorted(columns.top_logprobs, reverse=True)
    assert np.exp(columns.top_logprobs).sum() == pytest.approx(1.0)


def test_processed_logprobs_are_those_of_what_the_token_is_drawn_from():
    """In processed mode masks and temperature show in the log-probabilities; in raw mode they do not."""
    row = _row()
    params = SamplingParams(temperature=0.5, seed=3, allowed_token_ids=(11, 12), num_logprobs=2)
    for is_raw in (True, False):
        sampler = Sampler(_VOCAB, 1, is_raw=is_raw)
        sampler.admit(_sequence(0, params))
        found = sampler.sample(np.array([0]), FixedLogits([row])).logprobs
        logits = torch.from_numpy(row).double()
        if not is_raw:
            assert set(found.top_token_ids) == {11, 12}
            kept = torch.full_like(logits, -torch.inf)
            kept[[11, 12]] = logits[[11, 12]] / 0.5
            logits = kept
        scores = torch.log_softmax(logits, dim=0)
        assert found.top_logprobs == pytest.approx(scores[found.top_token_ids].tolist(), abs=1e-5)
