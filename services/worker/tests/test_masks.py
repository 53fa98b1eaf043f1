"""Token masks: the letter box they arrive in, what the sampler makes of them, and a runner that waits for them."""

import threading
import time

import numpy as np
import pytest
import torch
import transformers

from quire_worker.engine import Engine
from quire_worker.masks import MaskBox, MasksLost, num_words, permitted_ids
from quire_worker.sampling.sampler import Sampler
from quire_worker.step import NewSequence, SamplingParams, StepMask, StepPlan

VOCAB = 50


def words(*permitted, size=VOCAB):
    """A mask row."""
    row = np.zeros(num_words(size), dtype=np.uint32)
    for token in permitted:
        row[token >> 5] |= np.uint32(1 << (token & 31))
    return row


class FixedLogits:
    """A forward pass whose logits are given."""

    def __init__(self, rows):
        self._rows = np.array(rows, dtype=np.float32)

    def greedy(self):
        return self._rows.argmax(axis=1).astype(np.int32)

    def logits(self):
        return self._rows


def rows(count, seed=0):
    return np.random.default_rng(seed).standard_normal((count, VOCAB)).astype(np.float32)


def sampler_of(*params):
    sampler = Sampler(VOCAB, len(params))
    for slot, each in enumerate(params):
        sampler.admit(NewSequence(slot, [1, 2, 3], 3, 0, [1], each, (9,)))
    return sampler


def test_words_and_ids_are_the_same():
    """Bit t % 32 of word t // 32 is token t, up to the vocabulary's end."""
    assert permitted_ids(words(0, 31, 32, 49), VOCAB).tolist() == [0, 31, 32, 49]
    everything = np.full(num_words(VOCAB), 0xFFFFFFFF, dtype=np.uint32)
    assert permitted_ids(everything, VOCAB).tolist() == list(range(VOCAB))


def test_a_mask_waits_for_all_its_slots():
    """`wait` returns when the last slot's row is there, however many messages bring them, and takes them out."""
    box, got = MaskBox(), []
    waiter = threading.Thread(target=lambda: got.append(box.wait(5, [1, 2])))
    waiter.start()
    box.put(StepMask(5, [1], np.stack([words(3)])))
    box.put(StepMask(6, [1], np.stack([words(4)])))
    time.sleep(0.02)
    assert got == []
    box.put(StepMask(5, [2], np.stack([words(7)])))
    waiter.join(5)
    masks, _ = got[0]
    assert {slot: permitted_ids(row, VOCAB).tolist() for slot, row in masks.items()} == {1: [3], 2: [7]}
    assert box.try_take(5, [1]) is None
    assert box.try_take(6, [1]) is not None


def test_a_closed_box_fails_waiters_present_and_later():
    """When the stream has ended nobody waits, until the box is reset; what had come is forgotten then."""
    box, failures = MaskBox(), []

    def wait():
        try:
            box.wait(1, [0])
        except MasksLost as error:
            failures.append(error)

    waiter = threading.Thread(target=wait)
    waiter.start()
    time.sleep(0.02)
    box.close()
    waiter.join(5)
    wait()
    assert len(failures) == 2
    box.put(StepMask(1, [0], np.stack([words(3)])))
    box.reset()
    assert box.try_take(1, [0]) is None


def test_masked_rows_choose_among_what_is_permitted():
    """Greedy and drawn rows take a permitted token, greedy the best of them; rows without a mask are as without."""
    greedy, drawn = SamplingParams(temperature=0.0), SamplingParams(temperature=1.0, seed=4)
    logits = rows(4)
    slots = np.arange(4)
    masks = {0: words(5, 6, 7), 1: words(11, 12)}
    chosen = sampler_of(greedy, drawn, greedy, drawn).sample(slots, FixedLogits(logits), masks).token_ids
    plain = sampler_of(greedy, drawn, greedy, drawn).sample(slots, FixedLogits(logits)).token_ids
    assert chosen[0] == 5 + logits[0, 5:8].argmax()
    assert chosen[1] in (11, 12)
    assert chosen[2:].tolist() == plain[2:].tolist()


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=1.0, top_k=1, seed=1),
        SamplingParams(temperature=1.0, top_p=0.01, seed=1),
        SamplingParams(temperature=0.0, logit_bias={3: 100.0}),
        SamplingParams(temperature=0.0, bad_token_sequences=((20,), (21,))),
        SamplingParams(temperature=0.0, min_tokens=5, stop_token_ids=(20, 21)),
    ],
    ids=["top_k", "top_p", "bias", "bad words", "min_tokens"],
)
def test_nothing_leads_out_of_a_mask(params):
    """Filters and biases act inside the mask; what forbids tokens yields where nothing else would be left."""
    chosen = sampler_of(params).sample(np.array([0]), FixedLogits(rows(1)), {0: words(20, 21)}).token_ids
    assert chosen[0] in (20, 21)


def test_min_tokens_holds_inside_a_mask():
    """Ending ids are left out before min_tokens as long as the mask has another token."""
    params = SamplingParams(temperature=0.0, min_tokens=5)
    logits = np.full((1, VOCAB), 0.0)
    logits[0, 9] = 10.0
    chosen = sampler_of(params).sample(np.array([0]), FixedLogits(logits), {0: words(9, 30)}).token_ids
    assert chosen.tolist() == [30]


def test_logprobs_are_of_the_raw_logits():
    """A mask changes what is chosen, not the log-probabilities that are told."""
    params, logits = SamplingParams(temperature=0.0, num_logprobs=2), rows(1)
    found = sampler_of(params).sample(np.array([0]), FixedLogits(logits), {0: words(20)})
    raw = logits[0] - np.log(np.exp(logits[0]).sum())
    np.testing.assert_allclose(found.logprobs.logprobs[0], raw[20], rtol=1e-5)
    assert found.logprobs.top_token_ids == np.argsort(-raw)[:2].tolist()


def test_a_mask_of_nothing_is_malformed():
    """A row that permits no token raises, whether its slot asks for anything else or not."""
    for params in (SamplingParams(temperature=0.0), SamplingParams(seed=1)):
        with pytest.raises(ValueError, match="permits no token"):
            sampler_of(params).sample(np.array([0]), FixedLogits(rows(1)), {0: words()})


@pytest.fixture(scope="module")
def model(tmp_path_factory, load_path):
    """A tiny Llama."""
    folder = tmp_path_factory.mktemp("llama")
    torch.manual_seed(3)
    config = transformers.LlamaConfig(
        vocab_size=120, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=32, max_position_embeddings=128,
    )  # fmt: skip
    transformers.LlamaForCausalLM(config).eval().save_pretrained(folder)
    return load_path(folder)


def masked_plan(step_id=1):
    sequence = NewSequence(0, [4, 5, 6], 3, 0, [1], SamplingParams(temperature=0.0, is_masked=True))
    return StepPlan(step_id, [0], [3], new_sequences=[sequence], masked_slots=[0])


def test_a_runner_waits_for_its_mask_and_tells_how_long(model):
    """The step ends when the mask has come; the wait is told apart from sampling, and the token is permitted."""
    runner = model.runner(num_blocks=30, max_num_seqs=4, max_tokens=64)
    engine = Engine(runner)
    future = engine.submit(masked_plan())
    time.sleep(0.1)
    assert not future.done()
    runner.masks.put(StepMask(1, [0], np.stack([words(77, size=120)])))
    outcome = future.result(5)
    assert outcome.token_ids == [77]
    assert outcome.times.mask_wait_us > 10_000
    assert outcome.times.sample_us >= 0
    engine.stop(5)


def test_a_reset_frees_a_runner_from_a_mask_that_never_comes(model):
    """Closing the box fails the step that waits and those behind it; after the reset the runner works again."""
    runner = model.runner(num_blocks=30, max_num_seqs=4, max_tokens=64)
    engine = Engine(runner)
    futures = [engine.submit(masked_plan()), engine.submit(StepPlan(2, [0], [1], masked_slots=[0]))]
    runner.masks.close()
    reset = engine.reset()
    for future in futures:
        assert isinstance(future.exception(5), MasksLost | ValueError)
    reset.result(5)
    again = engine.submit(masked_plan(3))
    runner.masks.put(StepMask(3, [0], np.stack([words(8, 9, size=120)])))
    assert again.result(5).token_ids[0] in (8, 9)
    engine.stop(5)
