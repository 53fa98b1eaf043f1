"""Steps as graphs, without a device: what is packed for them, in which size they run, and that their tokens are right.

Capturing is replaced by running again; the kernels are the plain ones, made to follow the lists that the device would.
"""

import json

import pytest
import torch

from quire_worker.cuda import graphs, shared_prefix
from quire_worker.cuda.build import build_runner
from quire_worker.cuda.graphs import Size, mixed_sizes
from quire_worker.cuda.model import Loaded
from quire_worker.cuda.placement import DevicePlacement
from quire_worker.cuda.plain import PlainKernels
from quire_worker.loading.dummy import open_dummy
from quire_worker.models.decoder import load_weights
from quire_worker.models.registry import spec_from_config
from quire_worker.slots import SlotLimits
from quire_worker.step import NewSequence, SamplingParams, StepPlan

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 300,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
}
LIMITS = SlotLimits(max_num_seqs=12, max_model_len=256, block_size=16, num_blocks=200)
CPU = torch.device("cpu")
TILE = 16


class Listing(PlainKernels):
    """Plain kernels that go by the lists that are packed for captured steps."""

    def __init__(self):
        self.prefixes = []

    def tokens_of_tile(self, num_heads, num_kv_heads, head_dim, dtype):
        return TILE

    def decode_attention(self, *tensors, prefix, **options):
        if prefix is not None:
            self.prefixes.append(prefix[: 2 + int(prefix[1])].tolist())
        super().decode_attention(*tensors, prefix=prefix, **options)

    def prefill_attention(self, *tensors, is_new, tiles, **options):
        if tiles is None:
            super().prefill_attention(*tensors, is_new=is_new, tiles=None, **options)
            return
        qkv, pool, starts, lens, rows, tables, out = tensors
        listed = {}
        for entry in tiles[1 : 1 + int(tiles[0])].tolist():
            listed.setdefault(entry >> 16, []).append(entry & 65535)
        for row, found in listed.items():
            count = int(starts[row + 1] - starts[row])
            assert sorted(found) == list(range(-(-count // TILE)))
            part = (starts[row : row + 2], lens[row : row + 1], rows[row : row + 1])
            super().prefill_attention(qkv, pool, *part, tables, out, is_new=is_new, tiles=None, **options)


class Again:
    """In place of a captured graph: launches again, into the tensor that the first time gave."""

    def __init__(self, launch, result):
        self._launch, self._result = launch, result

    @torch.inference_mode()
    def replay(self):
        result = self._launch()
        if result is not None and result is not self._result:
            self._result.copy_(result)


def captured(launch, memory):
    result = launch()
    return Again(launch, result), result


def build(tmp_path, kernels):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    files = open_dummy(str(tmp_path), is_lazy=True)
    spec = spec_from_config(files.config, CONFIG["architectures"][0])
    weights = load_weights(spec, files.source, DevicePlacement(CPU, torch.float32), lambda done, total: None)
    return build_runner(Loaded(spec, weights, kernels, CPU, torch.float32), LIMITS, 512, LIMITS.block_size)


@pytest.fixture
def both(tmp_path, monkeypatch):
    """(runner with graphs, runner without, sizes that ran, the first one's kernels)"""
    monkeypatch.setattr(graphs, "_captured", captured)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    monkeypatch.setattr(graphs, "MIN_ROWS", 3)
    monkeypatch.setattr(shared_prefix, "MIN_ROWS", 3)
    monkeypatch.setattr(shared_prefix, "MIN_TOKENS", 32)
    kernels = Listing()
    built = build(tmp_path, kernels)
    built.graphs.capture()
    sizes = []
    compute = built.graphs.compute
    monkeypatch.setattr(built.graphs, "compute", lambda size: (sizes.append(size), compute(size))[1])
    kernels.prefixes.clear()
    return built.runner, build(tmp_path, PlainKernels()).runner, sizes, kernels


def tokens(length, salt):
    return [(7 * i * salt + 13 * salt) % 300 for i in range(length)]


def sequence(slot, ids, blocks, computed=0):
    return NewSequence(slot, ids, len(ids), computed, blocks, SamplingParams(temperature=0.0))


def outcomes(runner, plans):
    return [runner.finish(runner.launch(plan)).token_ids for plan in plans]


def test_steps_with_prompts_give_the_tokens_of_eager_ones(both):
    """Whole prompts, chunks, and one-token prompts beside decoding rows, in the smallest size that holds them."""
    runner, eager, sizes, _ = both
    first = [sequence(0, tokens(40, 1), [1, 2, 3, 4]), sequence(1, tokens(5, 2), [5, 6])]
    last = [sequence(3, [9], [14]), sequence(4, tokens(33, 5), [15, 16, 17])]
    plans = [
        StepPlan(1, [0, 1], [40, 5], new_sequences=first),
        StepPlan(2, [0, 1, 2], [1, 1, 70], new_sequences=[sequence(2, tokens(90, 3), [7, 8, 9, 10, 11, 12, 13])]),
        StepPlan(3, [0, 1, 2], [1, 1, 20]),
        StepPlan(4, [0, 1, 3, 4], [1, 1, 1, 33], new_sequences=last),
        StepPlan(5, [0, 1, 2, 3, 4], [1] * 5),
    ]  # fmt: skip
    assert outcomes(runner, plans) == outcomes(eager, plans)
    assert sizes == [Size(64, 12), Size(128, 12), Size(64, 12), Size(64, 12), Size(8, 8)]


def test_rows_that_begin_alike_are_told_to_the_kernels(both):
    """The largest group with the same first blocks shares the whole blocks that all of them have computed, until its
    sequences change."""
    runner, eager, sizes, kernels = both
    head, shared = tokens(80, 9), [1, 2, 3, 4, 5]
    first = sequence(0, [*head, *tokens(9, 1)], [*shared, 6, 7])
    others = [sequence(slot, [*head, *tokens(4, slot)], [*shared, 10 * slot], 80) for slot in (1, 2)]
    others.append(sequence(3, tokens(40, 4), [41, 42, 43, 44]))
    plans = [
        StepPlan(1, [0], [89], new_sequences=[first]),
        StepPlan(2, [0, 1, 2, 3], [1, 4, 4, 40], new_sequences=others),
        StepPlan(3, [0, 1, 2, 3], [1] * 4),
        StepPlan(4, [0, 2], [1] * 2),
    ]
    assert outcomes(runner, plans) == outcomes(eager, plans)
    assert sizes[2:] == [Size(4, 4, has_prefix=True), Size(2, 2)]
    assert kernels.prefixes == [[80, 3, 0, 1, 2]] * CONFIG["num_hidden_layers"]


def test_sizes_end_where_the_device_takes_longer_than_launching(tmp_path):
    """A large model's steps are captured up to fewer tokens than a small one's; all have fewer rows than tokens."""
    small = spec_from_config(CONFIG, CONFIG["architectures"][0])
    large = spec_from_config(
        CONFIG
        | {"hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32, "head_dim": 128},
        CONFIG["architectures"][0],
    )
    sizes = [mixed_sizes(spec, 256, 8192) for spec in (small, large)]
    assert max(size.num_tokens for size in sizes[0]) > 2 * max(size.num_tokens for size in sizes[1])
    assert all(size.num_rows < size.num_tokens for size in [*sizes[0], *sizes[1]])
