"""The device path on plain kernels: the tokens of the CPU's torch path, whatever way a sequence takes."""

import json
import queue
from dataclasses import replace

import numpy as np
import pytest
import torch

from quire_worker.attention.registry import create_attention
from quire_worker.cuda.build import build_runner
from quire_worker.cuda.columns import ColumnBuilder
from quire_worker.cuda.executor import DeviceExecutor, DeviceExecutorSettings
from quire_worker.cuda.model import Loaded
from quire_worker.cuda.pipeline import Pipeline
from quire_worker.cuda.placement import DevicePlacement
from quire_worker.cuda.plain import PlainKernels
from quire_worker.engine import EngineStopped
from quire_worker.executor import ModelSource, PoolRequest
from quire_worker.input_batch import InputBatch
from quire_worker.kv_cache import BlockPool
from quire_worker.layers.eager import EagerForward, TensorPlacement
from quire_worker.loading.dummy import open_dummy
from quire_worker.models.decoder import load_weights
from quire_worker.models.registry import spec_from_config
from quire_worker.runner import ModelRunner
from quire_worker.sampling.sampler import Sampler
from quire_worker.slots import SlotLimits, SlotTables
from quire_worker.step import NewSequence, SamplingParams, StepOutcome, StepPlan

CONFIG = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 300,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
}
LIMITS = SlotLimits(max_num_seqs=6, max_model_len=256, block_size=16, num_blocks=100)
CPU = torch.device("cpu")


class Blocking:
    """A DeviceRunner behind the interface of ModelRunner: each step is waited for."""

    def __init__(self, runner):
        self._runner = runner

    def execute(self, plan):
        return self._runner.finish(self._runner.launch(plan))

    def reset(self):
        self._runner.reset()


@pytest.fixture(scope="module", params=["LlamaForCausalLM", "Qwen3ForCausalLM", "Qwen2ForCausalLM"])
def folder(request, tmp_path_factory):
    """A folder that holds only a tiny model's config.json."""
    path = tmp_path_factory.mktemp("tiny")
    (path / "config.json").write_text(json.dumps({"architectures": [request.param], **CONFIG}))
    return path


def opened(folder, *, is_lazy=True):
    files = open_dummy(str(folder), is_lazy=is_lazy)
    return files, spec_from_config(files.config, files.config["architectures"][0])


class Fusing(PlainKernels):
    """Plain kernels that are asked for all the fusions that the fast ones offer."""

    max_small_rows = 1
    max_skinny_rows = 4


def device_runner(folder, max_tokens=512, kernels=PlainKernels):
    files, spec = opened(folder)
    weights = load_weights(spec, files.source, DevicePlacement(CPU, torch.float32), lambda done, total: None)
    loaded = Loaded(spec, weights, kernels(), CPU, torch.float32)
    return Blocking(build_runner(loaded, LIMITS, max_tokens, LIMITS.block_size).runner)


def torch_runner(folder, max_tokens=512):
    files, spec = opened(folder, is_lazy=False)
    weights = load_weights(spec, files.source, TensorPlacement(CPU, torch.float32), lambda done, total: None)
    tables, batch = SlotTables(LIMITS), InputBatch(max_tokens, LIMITS.max_num_seqs)
    pool = BlockPool(spec, LIMITS.num_blocks, LIMITS.block_size, device=CPU)
    forward = EagerForward(spec, weights, batch, pool, tables.block_table, create_attention("torch"))
    return ModelRunner(forward, tables, batch, pool, Sampler(spec.vocab_size, LIMITS.max_num_seqs))


def prompt(length, salt=1):
    return [(7 * i * salt + 13 * salt) % 300 for i in range(length)]


def assert_close(ours, theirs):
    """Two log-probability columns are the same but for rounding."""
    assert (ours is None) == (theirs is None)
    if ours is not None:
        assert ours.rows == theirs.rows
        assert ours.ranks == theirs.ranks
        assert ours.top_token_ids == theirs.top_token_ids
        np.testing.assert_allclose(ours.logprobs, theirs.logprobs, atol=1e-4)
        np.testing.assert_allclose(ours.top_logprobs, theirs.top_logprobs, atol=1e-4)


@pytest.mark.parametrize("kernels", [PlainKernels, Fusing])
@pytest.mark.parametrize("chunk", [10**9, 7, 1])
def test_greedy_tokens_are_those_of_the_torch_path(folder, planner, job, chunk, kernels):
    """Sequences of uneven lengths, chunked or not, get the reference's tokens."""
    lengths = (40, 5, 33, 1)
    expected = planner(torch_runner(folder)).run(*(job(prompt(n, n), 8) for n in lengths))
    assert (
        planner(device_runner(folder)).run(*(job(prompt(n, n), 8) for n in lengths), chunk=chunk) == expected
    )


def test_a_cached_prefix_and_tokens_so_far_change_nothing(folder, planner, job):
    """A sequence that reads its prefix from another's blocks, or comes back with its output, gets the same tokens."""
    plan = planner(device_runner(folder))
    whole = job(prompt(40), 10)
    expected = plan.run(whole)[0]
    again = job(prompt(40), 10, cached=32, block_ids=[*whole.block_ids[:2], *plan.take_blocks(32)])
    resumed = job(prompt(40), 6, known=expected[:4])
    assert plan.run(again, resumed) == [expected, expected[4:]]


@pytest.mark.parametrize(
    "changes",
    [
        {"temperature": 0.8},
        {"temperature": 1.3, "top_p": 0.7, "top_k": 40, "min_p": 0.01},
        {"temperature": 0.9, "repetition_penalty": 1.3, "frequency_penalty": 0.4, "presence_penalty": -0.3},
        {"temperature": 0.0, "logit_bias": {5: 4.0, 9: -100.0}, "num_logprobs": 3},
        {"temperature": 1.0, "allowed_token_ids": (3, 14, 15, 92), "min_tokens": 3, "stop_token_ids": (14,)},
    ],
    ids=["temperature", "filters", "penalties", "bias", "masks"],
)
def test_sampling_is_that_of_the_torch_path(folder, planner, job, changes):
    """Draws depend on seed, sequence and position alone, so both paths draw the same tokens, with the same
    log-probabilities; a greedy neighbour stays as it is."""

    def jobs():
        sampling = SamplingParams(seed=1 << 63 | 77, **changes)
        return job(prompt(20), 8, sampling=sampling, sequence_index=2), job(prompt(9, 2), 8)

    ours, theirs = jobs(), jobs()
    assert planner(device_runner(folder)).run(*ours) == planner(torch_runner(folder)).run(*theirs)
    for mine, reference in zip(ours[0].outcomes, theirs[0].outcomes, strict=True):
        assert_close(mine.logprobs, reference.logprobs)


def test_prompt_logprobs_are_those_of_the_torch_path(folder, planner, job):
    """They are gathered over chunks beside a sequence that did not ask."""
    sampling = SamplingParams(temperature=0.0, num_prompt_logprobs=2)
    results = []
    for make in (device_runner, torch_runner):
        asking, other = job(prompt(30), 2, sampling=sampling), job(prompt(12, 3), 4)
        planner(make(folder)).run(asking, other, chunk=8)
        results.append(asking.prompt_logprobs)
    assert [position for part in results[0] for position in part.positions] == list(range(1, 30))
    for ours, theirs in zip(*results, strict=True):
        assert (ours.slots, ours.positions) == (theirs.slots, theirs.positions)
        assert_close(ours.logprobs, theirs.logprobs)


def test_blocks_are_copied_before_a_step(folder, planner, job):
    """A fork that goes on in a copy of a partly filled block gets the tokens of the original."""
    plan = planner(device_runner(folder))
    source = job(prompt(20), 3)
    expected = plan.run(source)[0]
    target = plan.take_blocks(32)
    fork = NewSequence(0, prompt(20), 20, 19, target, SamplingParams(temperature=0.0))
    outcome = plan.execute(
        [0],
        [1],
        new_sequences=[fork],
        copy_source_block_ids=source.block_ids[:2],
        copy_target_block_ids=target,
    )
    assert outcome.token_ids == expected[:1]


def test_blocks_may_be_appended_long_before_they_are_needed(folder, planner, job):
    """Where the contract lets a plan append blocks early, they land at the end of the table all the same."""
    plan = planner(device_runner(folder))
    expected = plan.run(job(prompt(10), 40))[0]
    blocks = plan.take_blocks(64)
    sequence = NewSequence(0, prompt(10), 10, 0, blocks[:1], SamplingParams(temperature=0.0))
    tokens = plan.execute(
        [0], [10], new_sequences=[sequence], num_new_blocks=[1], new_block_ids=blocks[1:2]
    ).token_ids
    tokens += plan.execute([0], [1], num_new_blocks=[2], new_block_ids=blocks[2:4]).token_ids
    for _ in range(38):
        tokens += plan.execute([0], [1]).token_ids
    assert tokens == expected


@pytest.mark.parametrize(
    ("plan", "reason"),
    [
        (StepPlan(1, [0], [1]), "slot 0 runs but is empty"),
        (StepPlan(1, [9], [1]), "distinct and within 0..5"),
        (StepPlan(1, [0, 0], [1, 1]), "distinct"),
        (StepPlan(1, [0], [1, 2]), "1 slots with 2 token counts"),
        (StepPlan(1, [0], [600]), "600 tokens; limits are 6 and 512"),
        (StepPlan(1, [], [], released_slots=[3]), "slot 3 is released but empty"),
        (StepPlan(1, [], [], copy_source_block_ids=[1], copy_target_block_ids=[200]), "block id 200"),
    ],
)
def test_a_plan_that_cannot_be_is_refused(folder, plan, reason):
    """The message says which slot or limit."""
    with pytest.raises(ValueError, match=reason):
        device_runner(folder).execute(plan)


def test_a_row_beyond_its_known_tokens_or_blocks_is_refused(folder):
    """A row can't compute tokens nobody knows, nor tokens that its blocks do not hold."""
    tables = SlotTables(LIMITS)
    tables.place(NewSequence(2, prompt(20), 20, 0, [1], SamplingParams()))
    with pytest.raises(ValueError, match="slot 2: 21 new tokens"):
        ColumnBuilder(tables, 512).build(StepPlan(1, [2], [21]))
    with pytest.raises(ValueError, match="its blocks hold 16"):
        ColumnBuilder(tables, 512).build(StepPlan(1, [2], [20]))


class Recording:
    """A runner that fails at step 2."""

    def __init__(self):
        self.resets = 0

    def launch(self, plan):
        if plan.step_id == 2:
            raise ValueError("no")
        return plan

    def finish(self, launched):
        if launched.step_id == 3:
            raise RuntimeError("device")
        return StepOutcome(launched.step_id, [], [])

    def reset(self):
        self.resets += 1


def test_the_pipeline_reports_every_step_in_order():
    """Failures to launch and failures on the device are reported in their turn, and later steps still run."""
    runner, results = Recording(), queue.Queue()
    pipeline = Pipeline(runner, lambda: torch.inference_mode())
    for step in range(1, 5):
        pipeline.submit(StepPlan(step, [], []), results.put)
    pipeline.reset().result(10)
    first, second, third, fourth = (results.get(timeout=10) for _ in range(4))
    assert (first.step_id, fourth.step_id, runner.resets) == (1, 4, 1)
    assert isinstance(second, ValueError)
    assert isinstance(third, RuntimeError)
    assert pipeline.busy_for_s == 0.0
    assert pipeline.stop(10)
    with pytest.raises(EngineStopped):
        pipeline.submit(StepPlan(5, [], []), results.put)


def test_the_executor_runs_plans_ahead_of_results(folder):
    """Plans for tokens that nobody knows yet can be queued before the first result is there."""
    executor = DeviceExecutor(DeviceExecutorSettings(device="cpu", load_format="dummy"))
    progress = []
    model = executor.load(ModelSource(str(folder)), progress.append)
    pool = executor.allocate(PoolRequest(max_num_seqs=4, max_tokens_per_step=64, num_blocks=40))
    assert (model.vocab_size, model.dtype, pool.max_model_len) == (300, "float32", 256)
    assert progress[-1].done == progress[-1].total > 0
    results = queue.Queue()
    sequence = NewSequence(0, prompt(20), 20, 0, [1, 2], SamplingParams(temperature=0.0))
    executor.submit_plan(StepPlan(1, [0], [20], new_sequences=[sequence]), results.put)
    for step in range(2, 6):
        executor.submit_plan(StepPlan(step, [0], [1]), results.put)
    tokens = [results.get(timeout=30).token_ids for _ in range(5)]
    executor.close()
    runner = torch_runner(folder)
    expected = [runner.execute(StepPlan(1, [0], [20], new_sequences=[replace(sequence)])).token_ids]
    expected += [runner.execute(StepPlan(step, [0], [1])).token_ids for step in range(2, 6)]
    assert tokens == expected
