"""The real executor: loads a model, allocates its pool, and runs plans on the engine thread.

Joins loading, sizing, the runner and the engine; fulfils executor.Executor and knows no gRPC.
"""

# ruff: noqa: E402
from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

from quire_kernels.cpu.environment import prepare_process

# Thread waiting and the kernel cache are settled when torch and numba are imported, which happens just below.
prepare_process()

import torch

from quire_worker.backend import Backend, choose_backend
from quire_worker.engine import Engine
from quire_worker.executor import (
    Deliver,
    LoadPhase,
    LoadProgress,
    ModelDescription,
    ModelSource,
    ModelTask,
    PoolDescription,
    PoolRequest,
)
from quire_worker.input_batch import InputBatch
from quire_worker.kv_cache import BlockPool
from quire_worker.loading.dummy import open_dummy
from quire_worker.loading.fp8 import with_quantization
from quire_worker.loading.open import (
    architecture,
    default_sampling,
    eos_token_ids,
    fingerprint,
    open_model,
    served_name,
)
from quire_worker.loading.weight_count import CountingSource
from quire_worker.masks import MaskBox
from quire_worker.models.decoder import DecoderWeights, load_weights
from quire_worker.models.registry import spec_from_config
from quire_worker.models.spec import DecoderSpec
from quire_worker.pooling.collector import PoolingCollector
from quire_worker.pooling.files import pooling_defaults
from quire_worker.pooling.params import PoolingDefaults, PoolingMethod
from quire_worker.runner import ModelRunner
from quire_worker.sampling.sampler import Sampler
from quire_worker.sizing import free_host_bytes, plan_pool, step_sizes
from quire_worker.slots import SlotLimits, SlotTables
from quire_worker.step import NewSequence, SamplingParams, StepMask, StepOutcome, StepPlan
from quire_worker.worst_step import worst_step_bytes


@dataclass(frozen=True, slots=True)
class ModelExecutorSettings:
    """device: cpu, cuda or cuda:N. num_threads: 0 is one per core. attention: auto, cpu, torch or a plug-in.
    pool_memory_bytes: what the block pool may take; 0 is a share of what is free (see sizing.py).
    load_format: auto reads the model's files, dummy draws random weights. quantization: see loading/fp8.py.
    has_raw_logprobs: see Sampler's is_raw. tasks: what the model is served for.
    pooling: how embeddings are made; None is as the model's files say, else of the last token."""

    device: str = "cpu"
    num_threads: int = 0
    attention: str = "auto"
    pool_memory_bytes: int = 0
    load_format: str = "auto"
    quantization: str = "auto"
    has_raw_logprobs: bool = True
    tasks: tuple[ModelTask, ...] = (ModelTask.GENERATE,)
    pooling: PoolingMethod | None = None


@dataclass(frozen=True, slots=True)
class _Loaded:
    """A model whose weights are in place."""

    spec: DecoderSpec
    backend: Backend
    weights: DecoderWeights
    #: None: not served for vectors.
    pooling: PoolingDefaults | None = None


class ModelExecutor:
    """See executor.Executor."""

    def __init__(self, settings: ModelExecutorSettings) -> None:
        self._settings = settings
        self._loaded: _Loaded | None = None
        self._engine: Engine | None = None
        self._masks: MaskBox | None = None

    @property
    def device(self) -> str:
        """Where it runs."""
        return self._settings.device

    @property
    def busy_for_s(self) -> float:
        """How long the present step has run; 0 when idle."""
        return self._engine.busy_for_s if self._engine is not None else 0.0

    def load(self, source: ModelSource, report: Callable[[LoadProgress], None]) -> ModelDescription:
        """See Executor."""
        is_dummy = self._settings.load_format == "dummy"
        files = open_dummy(source.path, is_lazy=False) if is_dummy else open_model(source.path)
        files = with_quantization(files, self._settings.quantization, keep=False)
        spec = spec_from_config(files.config, architecture(files))
        if self._settings.num_threads:
            torch.set_num_threads(self._settings.num_threads)
        backend = choose_backend(
            spec,
            device=self._settings.device,
            dtype=source.dtype,
            attention=self._settings.attention,
            num_threads=self._settings.num_threads,
        )

        def weights_read(done: int, total: int) -> None:
            report(LoadProgress(LoadPhase.WEIGHTS, done, total))

        counted = CountingSource(files.source)
        weights = load_weights(spec, counted, backend.placement(), weights_read)
        self._loaded = _Loaded(spec, backend, weights, self._pooling(source.path))
        report(LoadProgress(LoadPhase.WARM_UP, 0, 1))
        self._warm_up()
        report(LoadProgress(LoadPhase.WARM_UP, 1, 1))
        return ModelDescription(
            id=source.served_model_name or served_name(files),
            architecture=spec.architecture,
            max_model_len=spec.max_model_len,
            vocab_size=spec.vocab_size,
            eos_token_ids=eos_token_ids(files),
            dtype=str(backend.dtype).removeprefix("torch."),
            num_parameters=counted.num_parameters,
            created_unix_s=int(time.time()),
            fingerprint=fingerprint(files, spec.vocab_size),
            default_sampling=default_sampling(files),
            tasks=self._settings.tasks,
            embedding_size=spec.hidden_size if self._loaded.pooling is not None else 0,
        )

    def allocate(self, request: PoolRequest) -> PoolDescription:
        """See Executor."""
        loaded = self._loaded
        if loaded is None:
            raise ValueError("no model is loaded")
        backend = loaded.backend
        plan = plan_pool(
            loaded.spec,
            request,
            element_bytes=backend.dtype.itemsize,
            free_bytes=_free_bytes(backend.device),
            step_bytes=self._step_bytes(request),
            budget_bytes=self._settings.pool_memory_bytes,
        )
        limits = SlotLimits(plan.max_num_seqs, plan.max_model_len, plan.block_size, plan.num_blocks)
        pool = BlockPool(
            loaded.spec, plan.num_blocks, plan.block_size, device=backend.device, dtype=backend.dtype
        )
        is_raw = self._settings.has_raw_logprobs
        runner = _build_runner(loaded, limits, plan.max_tokens_per_step, pool, is_raw=is_raw)
        self._engine, self._masks = Engine(runner), runner.masks
        return PoolDescription(
            num_blocks=plan.num_blocks,
            block_size=plan.block_size,
            block_bytes=pool.block_bytes,
            max_num_seqs=plan.max_num_seqs,
            max_tokens_per_step=plan.max_tokens_per_step,
            max_model_len=plan.max_model_len,
        )

    def _step_bytes(self, request: PoolRequest) -> int:
        """What the largest step takes, measured; on other devices than the CPU nothing is set aside for it."""
        loaded = self._loaded
        assert loaded is not None
        if loaded.backend.device.type != "cpu":
            return 0
        sizes = step_sizes(loaded.spec, request)
        is_raw = self._settings.has_raw_logprobs

        def build(limits: SlotLimits) -> ModelRunner:
            backend = loaded.backend
            pool = BlockPool(
                loaded.spec, limits.num_blocks, limits.block_size, device=backend.device, dtype=backend.dtype
            )
            return _build_runner(loaded, limits, sizes.max_tokens_per_step, pool, is_raw=is_raw)

        return worst_step_bytes(build, sizes)

    def submit(self, plan: StepPlan, deliver: Deliver) -> None:
        """See Executor."""
        assert self._engine is not None
        loop = asyncio.get_running_loop()

        def done(future: Future[StepOutcome]) -> None:
            error = future.exception()
            result = error if isinstance(error, Exception) else future.result()
            if not loop.is_closed():
                loop.call_soon_threadsafe(deliver, result)

        self._engine.submit(plan).add_done_callback(done)

    def mask(self, mask: StepMask) -> None:
        """See Executor."""
        assert self._masks is not None
        self._masks.put(mask)

    async def reset(self) -> None:
        """See Executor."""
        if self._engine is not None and self._masks is not None:
            self._masks.close()
            await asyncio.wrap_future(self._engine.reset())

    def unload(self) -> None:
        """See Executor."""
        self.close()
        self._engine = self._masks = self._loaded = None

    def close(self) -> None:
        """See Executor."""
        if self._engine is not None and self._masks is not None:
            self._masks.close()
            self._engine.stop()

    def _pooling(self, path: str) -> PoolingDefaults | None:
        """How embeddings are made, where the model is served for them."""
        settings = self._settings
        if ModelTask.EMBED not in settings.tasks:
            return None
        defaults = pooling_defaults(path, PoolingMethod.LAST)
        return defaults if settings.pooling is None else PoolingDefaults(settings.pooling, defaults.normalize)

    def _warm_up(self) -> None:
        """One tiny step through everything, so that the first request meets compiled kernels and read pages."""
        assert self._loaded is not None
        loaded = self._loaded
        limits = SlotLimits(max_num_seqs=1, max_model_len=16, block_size=16, num_blocks=2)
        pool = BlockPool(loaded.spec, 2, 16, device=loaded.backend.device, dtype=loaded.backend.dtype)
        runner = _build_runner(loaded, limits, 16, pool)
        sequence = NewSequence(0, [0, 0], 2, 0, [1], SamplingParams(seed=1))
        runner.execute(StepPlan(0, [0], [2], new_sequences=[sequence]))
        runner.execute(StepPlan(1, [0], [1]))


def _build_runner(
    loaded: _Loaded, limits: SlotLimits, max_tokens: int, pool: BlockPool, *, is_raw: bool = True
) -> ModelRunner:
    tables = SlotTables(limits)
    batch = InputBatch(max_tokens, limits.max_num_seqs)
    forward = loaded.backend.forward(loaded.spec, loaded.weights, batch, pool, tables.block_table)
    draw = loaded.backend.draw(loaded.spec, limits.max_num_seqs)
    sampler = Sampler(loaded.spec.vocab_size, limits.max_num_seqs, draw, is_raw=is_raw)
    return ModelRunner(forward, tables, batch, pool, sampler, PoolingCollector(loaded.pooling))


def _free_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return free_host_bytes()
