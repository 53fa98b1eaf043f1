"""The device path on a GPU with Triton kernels and captured graphs: the tokens of the CPU's torch path in float32."""

import json
import queue

import pytest
import torch
from safetensors.torch import save_file

from quire_worker.cuda.executor import DeviceExecutor, DeviceExecutorSettings
from quire_worker.executor import ModelSource, PoolRequest
from quire_worker.loading.dummy import DummySource
from quire_worker.models.registry import spec_from_config
from quire_worker.step import NewSequence, SamplingParams, StepPlan

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

CONFIG = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 1000,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
}
VARIANTS = {
    "llama": {"architectures": ["LlamaForCausalLM"]},
    "qwen3": {"architectures": ["Qwen3ForCausalLM"], "tie_word_embeddings": True},
    "qwen2": {"architectures": ["Qwen2ForCausalLM"]},
    "window": {"architectures": ["MistralForCausalLM"], "sliding_window": 24},
}
POOL = PoolRequest(max_num_seqs=20, max_tokens_per_step=512, num_blocks=400)


@pytest.fixture(scope="module", params=list(VARIANTS))
def folder(request, tmp_path_factory):
    """A folder with a tiny random model in safetensors."""
    config = CONFIG | VARIANTS[request.param]
    path = tmp_path_factory.mktemp(request.param)
    (path / "config.json").write_text(json.dumps(config))
    source = DummySource(spec_from_config(config, config["architectures"][0]), is_lazy=False)
    tensors = {}
    for name in source.names():
        is_matrix = "norm" not in name and not name.endswith(".bias")
        values = source.matrix(name).data if is_matrix else source.vector(name)
        tensors[name] = torch.from_numpy(values.copy())
    save_file(tensors, path / "model.safetensors")
    return path


class Blocking:
    """An executor's pipeline behind the interface of ModelRunner."""

    def __init__(self, folder, device, dtype="float32"):
        self.executor = DeviceExecutor(DeviceExecutorSettings(device=device))
        self.executor.load(ModelSource(str(folder), dtype=dtype), lambda progress: None)
        self.executor.allocate(POOL)

    def execute(self, plan):
        results = queue.Queue()
        self.executor.submit_plan(plan, results.put)
        outcome = results.get(timeout=120)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def reset(self):
        self.executor._pipeline.reset().result(60)


@pytest.fixture(scope="module")
def pair(folder):
    """The same model on the GPU and on the CPU."""
    both = Blocking(folder, "cuda"), Blocking(folder, "cpu")
    yield both
    for runner in both:
        runner.executor.close()


def prompt(length, salt):
    return [(7 * i * salt + 13 * salt) % 1000 for i in range(length)]


LENGTHS = (40, 5, 33, 1, 100, 17, 64, 200)


@pytest.mark.parametrize("chunk", [10**9, 37])
@pytest.mark.parametrize("count", [1, 3, 8])
def test_greedy_tokens_are_the_cpus(pair, planner, job, chunk, count):
    """One sequence, few, and a padded graph; prompts whole and in chunks beside decoding sequences."""
    ours, reference = (
        planner(runner).run(*(job(prompt(n, n), 12 + n % 5) for n in LENGTHS[:count]), chunk=chunk)
        for runner in pair
    )
    assert ours == reference


@pytest.mark.parametrize(
    "changes",
    [
        {"temperature": 0.8},
        {"temperature": 1.1, "top_p": 0.8, "top_k": 50, "min_p": 0.01},
        {"temperature": 0.9, "frequency_penalty": 0.4, "num_logprobs": 2},
    ],
    ids=["temperature", "filters", "penalties"],
)
def test_sampled_tokens_are_the_cpus(pair, planner, job, changes):
    """Draws are the CPU's (but where two tokens are equal to the last bits, which these seeds avoid)."""
    results = []
    for runner in pair:
        sampling = SamplingParams(seed=1 << 63 | 77, **changes)
        jobs = [job(prompt(20, salt), 10, sampling=sampling, sequence_index=salt) for salt in (1, 2, 3)]
        results.append(planner(runner).run(*jobs, job(prompt(9, 2), 10)))
    assert results[0] == results[1]


def test_a_cached_prefix_and_tokens_so_far_change_nothing(pair, planner, job):
    """Prefix-cached and resumed sequences get the tokens of a plain run."""
    plan = planner(pair[0])
    whole = job(prompt(40, 3), 10)
    expected = plan.run(whole)[0]
    again = job(prompt(40, 3), 10, cached=32, block_ids=[*whole.block_ids[:2], *plan.take_blocks(32)])
    resumed = job(prompt(40, 3), 6, known=expected[:4])
    assert plan.run(again, resumed) == [expected, expected[4:]]


def test_steps_queued_ahead_give_the_tokens_of_steps_one_by_one(pair):
    """Plans for tokens nobody knows yet are right, graphs and eager steps mixed."""
    gpu, cpu = pair
    plans = [
        StepPlan(1, [0], [20], new_sequences=[NewSequence(0, prompt(20, 1), 20, 0, [1, 2, 3], _greedy())])
    ]
    plans += [StepPlan(step, [0], [1]) for step in range(2, 9)]
    joins = NewSequence(1, prompt(50, 4), 50, 0, [4, 5, 6, 7], _greedy())
    plans += [StepPlan(9, [0, 1], [1, 50], new_sequences=[joins])]
    plans += [StepPlan(step, [0, 1], [1, 1]) for step in range(10, 18)]
    results = queue.Queue()
    for plan in plans:
        gpu.executor.submit_plan(plan, results.put)
    ours = [results.get(timeout=60).token_ids for _ in plans]
    assert ours == [cpu.execute(plan).token_ids for plan in plans]
    gpu.reset()
    cpu.reset()


def test_rows_that_share_a_prefix_get_their_own_tokens(pair):
    """Attention reads the blocks that most rows of a step begin with once, and a row without them its own."""
    gpu, cpu = pair
    head, shared = prompt(512, 5), list(range(1, 33))
    first = NewSequence(0, [*head, 7], 513, 0, [*shared, 33], _greedy())
    others = [
        NewSequence(
            slot,
            [*head, *prompt(slot + 2, slot)],
            514 + slot,
            512,
            [*shared, 33 + slot, 60 + slot],
            _greedy(),
        )
        for slot in range(1, 17)
    ]
    others.append(NewSequence(17, prompt(40, 3), 40, 0, [90, 91, 92], _greedy()))
    slots = list(range(18))
    plans = [
        StepPlan(1, [0], [512], new_sequences=[first]),
        StepPlan(2, slots, [1, *(slot + 2 for slot in range(1, 17)), 40], new_sequences=others),
        *(StepPlan(step, slots, [1] * 18) for step in range(3, 9)),
    ]
    assert [gpu.execute(plan).token_ids for plan in plans] == [cpu.execute(plan).token_ids for plan in plans]
    gpu.reset()
    cpu.reset()


def test_nothing_is_compiled_while_serving(pair):
    """After the tests above the warm-up has left nothing to compile."""
    assert pair[0].executor.compiled.names == []


def _greedy():
    return SamplingParams(temperature=0.0)
