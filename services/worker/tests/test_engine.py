"""The engine thread and the executor over it."""

import asyncio
import threading
import time

import pytest

from quire_worker.engine import Engine, EngineStopped
from quire_worker.executor import LoadPhase, ModelSource, PoolRequest, PoolTooLarge
from quire_worker.model_executor import ModelExecutor, ModelExecutorSettings
from quire_worker.step import NewSequence, SamplingParams, StepOutcome, StepPlan


class FakeRunner:
    """Answers every plan with its number as token; plan 13 fails; `gate` holds plans up."""

    def __init__(self):
        self.done = []
        self.gate = threading.Event()
        self.gate.set()

    def execute(self, plan):
        self.gate.wait(5)
        if plan.step_id == 13:
            raise ValueError("unlucky")
        self.done.append(plan.step_id)
        return StepOutcome(plan.step_id, [0], [plan.step_id])

    def reset(self):
        self.done.append("reset")


@pytest.fixture
def runner():
    return FakeRunner()


@pytest.fixture
def engine(runner):
    engine = Engine(runner)
    yield engine
    runner.gate.set()
    engine.stop(5)


def _until(condition):
    """Wait for another thread, five seconds at most."""
    end = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


def _plan(number):
    return StepPlan(number, [0], [1])


def test_plans_run_in_order(engine, runner):
    """Plans and resets run one after the other, in the order in which they came."""
    futures = [engine.submit(_plan(1)), engine.submit(_plan(2)), engine.reset(), engine.submit(_plan(3))]
    assert [future.result(5) and future.result().token_ids for future in futures] == [[1], [2], None, [3]]
    assert runner.done == [1, 2, "reset", 3]


def test_a_failed_plan_is_reported_and_the_thread_lives(engine):
    """The exception reaches whoever submitted the plan; the next plan runs."""
    failed, following = engine.submit(_plan(13)), engine.submit(_plan(14))
    assert isinstance(failed.exception(5), ValueError) and following.result(5).step_id == 14


def test_stop_fails_what_is_queued(engine, runner):
    """The running step ends, queued ones are refused, and so is everything after."""
    runner.gate.clear()
    running, queued = engine.submit(_plan(1)), engine.submit(_plan(2))
    stopper = threading.Thread(target=engine.stop)
    _until(lambda: engine.busy_for_s > 0.0)
    stopper.start()
    _until(lambda: engine._stopped)
    runner.gate.set()
    stopper.join(5)
    assert running.result(5).step_id == 1 and isinstance(queued.exception(5), EngineStopped)
    with pytest.raises(EngineStopped):
        engine.submit(_plan(3))


def test_busy_time_is_seen_from_outside(engine, runner):
    """While a step runs its time grows; when idle it is 0."""
    runner.gate.clear()
    future = engine.submit(_plan(1))
    _until(lambda: engine.busy_for_s > 0.0)
    runner.gate.set()
    future.result(5)
    assert engine.busy_for_s == 0.0


@pytest.fixture(scope="module")
def loaded(smollm2_path):
    """An executor with SmolLM2, its description and the progress it reported."""
    executor, progress = ModelExecutor(ModelExecutorSettings(num_threads=2)), []
    model = executor.load(ModelSource(str(smollm2_path)), progress.append)
    yield executor, model, progress
    executor.close()


def test_load_describes_the_model(loaded):
    """The description has what clients must know, and progress ends with the warm-up."""
    _, model, progress = loaded
    assert (model.id, model.architecture, model.dtype) == (
        "SmolLM2-135M-Instruct.Q4_1",
        "LlamaForCausalLM",
        "float32",
    )
    assert (model.vocab_size, model.max_model_len, list(model.eos_token_ids)) == (49152, 8192, [2])
    assert model.num_parameters == 134_515_008
    assert [step.phase for step in progress[-2:]] == [LoadPhase.WARM_UP] * 2
    assert all(step.phase == LoadPhase.WEIGHTS for step in progress[:-2])


def test_a_pool_that_is_too_small_is_refused(smollm2_path, loaded):
    """One longest sequence must fit."""
    with pytest.raises(PoolTooLarge, match="8192 tokens"):
        loaded[0].allocate(PoolRequest(num_blocks=100))


async def test_outcomes_come_on_the_loop_in_order(loaded, golden):
    """Plans submitted one after the other are delivered in order on the event loop, errors among them."""
    executor, item, delivered = loaded[0], golden[0], asyncio.Queue()
    pool = executor.allocate(PoolRequest(max_num_seqs=4, max_tokens_per_step=64, max_model_len=256))
    assert (pool.block_size, pool.block_bytes) == (16, 16 * 2 * 30 * 3 * 64 * 4)
    prompt = item["prompt_ids"]
    sequence = NewSequence(1, prompt, len(prompt), 0, [1, 2, 3, 4], SamplingParams(temperature=0.0))
    executor.submit(StepPlan(0, [1], [len(prompt)], new_sequences=[sequence]), delivered.put_nowait)
    executor.submit(StepPlan(1, [1], [1]), delivered.put_nowait)
    executor.submit(StepPlan(2, [3], [1]), delivered.put_nowait)
    outcomes = [await asyncio.wait_for(delivered.get(), 30) for _ in range(3)]
    assert [outcome.token_ids for outcome in outcomes[:2]] == [[token] for token in item["output_ids"][:2]]
    assert isinstance(outcomes[2], ValueError)
    await executor.reset()
    executor.submit(StepPlan(0, [1], [len(prompt)], new_sequences=[sequence]), delivered.put_nowait)
    assert (await asyncio.wait_for(delivered.get(), 30)).token_ids == item["output_ids"][:1]


@pytest.mark.parametrize(
    ("settings", "dtype", "message"),
    [
        ({}, "float8", "float8"),
        ({"attention": "nowhere"}, "auto", "nowhere"),
        ({"attention": "cpu"}, "bfloat16", "float32"),
    ],
)
def test_what_can_not_run_is_refused(smollm2_path, settings, dtype, message):
    """An unknown dtype or backend, or one that can't run the model, is a ValueError before weights are read."""
    with pytest.raises(ValueError, match=message):
        ModelExecutor(ModelExecutorSettings(**settings)).load(
            ModelSource(str(smollm2_path), dtype=dtype), print
        )
