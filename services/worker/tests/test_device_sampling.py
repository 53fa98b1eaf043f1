"""Sampling on the device against the host's sampler: the same logits, step by step, whatever sequences ask for."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from quire_worker.cuda.device_logprobs import DeviceLogprobs
from quire_worker.cuda.device_sampling import DeviceSampling
from quire_worker.cuda.plain import PlainKernels
from quire_worker.cuda.state import make_sampling_table, make_tables
from quire_worker.sampling.sampler import Sampler
from quire_worker.slots import SlotLimits
from quire_worker.step import NewSequence, SamplingParams

VOCAB, SLOTS, STEPS = 5000, 6, 10
LIMITS = SlotLimits(SLOTS, 64, 16, 10)
ASKS = {
    "penalties": {"repetition_penalty": 1.4, "frequency_penalty": 0.5, "presence_penalty": -0.2},
    "bias": {"logit_bias": {5: 3.0, 4999: -100.0, 17: 1.5}},
    "allowed": {"allowed_token_ids": (3, 14, 15, 92, 4998)},
    "min_tokens": {"min_tokens": 4, "stop_token_ids": (1, 2)},
    "bad sequences": {"bad_token_sequences": ((7,), (5, 3), (9, 9, 9, 2)), "logit_bias": {5: 9.0, 3: 8.0, 7: 12.0}},
    "only what is forbidden": {"allowed_token_ids": (1, 2), "min_tokens": 5, "stop_token_ids": (1, 2)},
    "everything": {
        "repetition_penalty": 1.2, "logit_bias": {20: 4.0}, "allowed_token_ids": tuple(range(10, 60)), "min_tokens": 3,
        "stop_token_ids": (11,), "bad_token_sequences": ((20, 20),), "top_p": 0.9, "top_k": 30,
    },
    "nothing": {},
}  # fmt: skip
PLACES = [
    pytest.param("cpu", id="plain"),
    pytest.param("cuda", id="gpu", marks=[
        pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    ]),
]  # fmt: skip


class Logits:
    """A forward pass that has these logits."""

    def __init__(self, rows):
        self._rows = rows

    def greedy(self):
        return self._rows.argmax(1).astype(np.int32)

    def logits(self):
        return self._rows


@dataclass
class Both:
    """The device's sampling and the host's, on sequences in all slots."""

    device: str
    sequences: list

    def __post_init__(self):
        place = torch.device(self.device)
        self.host = Sampler(VOCAB, SLOTS)
        self.ours, self.logprobs = DeviceSampling(VOCAB, SLOTS, place), DeviceLogprobs(SLOTS, place)
        self.tables, self.table = make_tables(LIMITS, place), make_sampling_table(SLOTS, place)
        if self.device == "cpu":
            self.kernels = PlainKernels()
        else:
            from quire_worker.cuda.triton_kernels import TritonKernels

            self.kernels = TritonKernels()
        self.workspace = self.kernels.workspace(SLOTS, 4, 2, 64, VOCAB, place)
        for sequence in self.sequences:
            self.place(sequence)

    def place(self, sequence):
        slot, params, tokens = sequence.slot, sequence.sampling, sequence.token_ids
        self.host.admit(sequence)
        self.ours.admit(sequence)
        self.logprobs.admit(sequence)
        self.tables.token_ids[slot, : len(tokens)] = torch.tensor(tokens)
        self.tables.num_tokens[slot] = self.tables.num_computed[slot] = len(tokens)
        for name in ("temperature", "top_p", "min_p", "top_k", "seed"):
            getattr(self.table, name)[slot] = getattr(params, name)

    def step(self, logits, masks):
        """(our tokens and log-probabilities, the host's)."""
        slots = np.arange(SLOTS)
        there = torch.from_numpy(logits).to(self.device)
        on_device = torch.arange(SLOTS, dtype=torch.int32, device=self.device)
        rows = there
        if masks or self.ours.adjusts(slots):
            rows = self.ours.adjust(self.kernels, there, on_device, slots, self.tables, masks)
        out = torch.empty(SLOTS, dtype=torch.int32, device=self.device)
        self.kernels.sample_tokens(
            rows,
            on_device,
            self.table,
            self.tables,
            out,
            self.workspace,
            filtered=self.ours.is_filtered(slots),
        )
        pending = self.logprobs.start(there, out, slots, slots)
        self.tables.num_computed.copy_(self.tables.num_tokens)
        tokens = out.cpu().numpy()
        theirs = self.host.sample(slots, Logits(logits), masks)
        return (tokens, None if pending is None else pending.columns()), (theirs.token_ids, theirs.logprobs)


def sequence(slot, asks, *, temperature=0.0, output=(), **options):
    prompt = [(slot * 31 + 7 * i) % 50 for i in range(9)]
    params = SamplingParams(temperature=temperature, seed=slot + 5, **asks, **options)
    return NewSequence(slot, [*prompt, *output], len(prompt), 0, [1], params, eos_token_ids=(1,))


def drawn(step):
    # Most of the mass is on few ids, so that penalties and bad sequences meet them again.
    logits = np.random.default_rng(step).normal(size=(SLOTS, VOCAB)).astype(np.float32)
    logits[:, :60] += 4.0
    return logits


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("name", ASKS)
def test_tokens_are_the_hosts(place, temperature, name):
    """Beside a greedy neighbour, with output that came along, and with masks of some steps."""
    asking = [sequence(slot, ASKS[name], temperature=temperature) for slot in range(SLOTS - 2)]
    resumed = sequence(SLOTS - 2, ASKS[name], temperature=temperature, output=(5, 9, 9, 9))
    both = Both(place, [*asking, resumed, sequence(SLOTS - 1, {})])
    for step in range(STEPS):
        masks = {}
        if step % 3 == 1:
            bits = np.random.default_rng(step).integers(0, 2, (2, -(-VOCAB // 32) * 32), dtype=np.uint8)
            bits[:, [1, 2, 3, 14, 15]] = 1
            words = np.packbits(bits, axis=1, bitorder="little").view(np.uint32)
            masks = {0: words[0], SLOTS - 1: words[1]}
        ours, theirs = both.step(drawn(step), masks)
        assert ours[0].tolist() == theirs[0].tolist(), step
        assert ours[1] is theirs[1] is None


@pytest.mark.parametrize("place", PLACES)
def test_logprobs_are_the_hosts(place):
    """The most probable tokens, none of them, chosen ones in their order, and slots that do not ask."""
    both = Both(place, [
        sequence(0, {}, num_logprobs=3), sequence(1, {}), sequence(2, {}, num_logprobs=0, temperature=1.0),
        sequence(3, {}, logprob_token_ids=(90, 4, 4999)), sequence(4, ASKS["penalties"], num_logprobs=20),
        sequence(5, {}, temperature=0.5),
    ])  # fmt: skip
    for step in range(4):
        logits = drawn(step).round(1)
        ours, theirs = both.step(logits, {})
        assert ours[0].tolist() == theirs[0].tolist()
        for field in ("rows", "ranks", "num_top", "top_token_ids"):
            assert getattr(ours[1], field) == getattr(theirs[1], field), field
        np.testing.assert_allclose(ours[1].logprobs, theirs[1].logprobs, atol=1e-5)
        np.testing.assert_allclose(ours[1].top_logprobs, theirs[1].top_logprobs, atol=1e-5)


@pytest.mark.parametrize("place", PLACES)
def test_a_new_sequence_inherits_nothing_of_its_slot(place):
    """Counts, lists and flags are the new one's, also where it asks for less."""
    both = Both(place, [sequence(slot, ASKS["everything"], temperature=0.7) for slot in range(SLOTS)])
    for step in range(3):
        both.step(drawn(step), {})
    for slot, name in enumerate(
        ("nothing", "penalties", "bias", "bad sequences", "min_tokens", "everything")
    ):
        both.place(sequence(slot, ASKS[name]))
    for step in range(3, 8):
        ours, theirs = both.step(drawn(step), {})
        assert ours[0].tolist() == theirs[0].tolist()


def test_what_cannot_be_is_refused():
    """A mask without a token, and ids outside the vocabulary."""
    both = Both("cpu", [sequence(slot, {}) for slot in range(SLOTS)])
    with pytest.raises(ValueError, match="slot 2: its mask permits no token"):
        both.step(drawn(0), {2: np.zeros(-(-VOCAB // 32), dtype=np.uint32)})
    with pytest.raises(ValueError, match="slot 1: a token id is outside 0..4999"):
        both.ours.admit(sequence(1, {"logit_bias": {5000: 1.0}}))
