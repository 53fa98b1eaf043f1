"""The executor of models on an accelerator: loads one, sizes and allocates its pool, captures graphs, runs plans.

Fulfils executor.Executor; knows no gRPC.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import torch

from quire_servicekit.logging import get_logger
from quire_worker.attention.device import AttentionNeeds
from quire_worker.backend import DTYPES
from quire_worker.cuda.build import build_runner
from quire_worker.cuda.kernel_choice import CompileCounter, choose_kernels
from quire_worker.cuda.memory import profile, with_defaults
from quire_worker.cuda.model import Loaded
from quire_worker.cuda.pipeline import Pipeline
from quire_worker.cuda.placement import DevicePlacement
from quire_worker.cuda.runner import Launched
from quire_worker.executor import (
    Deliver,
    LoadPhase,
    LoadProgress,
    ModelDescription,
    ModelSource,
    PoolDescription,
    PoolRequest,
)
from quire_worker.loading.dummy import open_dummy
from quire_worker.loading.fp8 import kv_scales, with_quantization
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
from quire_worker.models.decoder import load_weights
from quire_worker.models.registry import spec_from_config
from quire_worker.models.spec import DecoderSpec
from quire_worker.sizing import DEFAULT_BLOCK_SIZE, plan_pool
from quire_worker.slots import SlotLimits
from quire_worker.step import StepMask, StepOutcome, StepPlan

log = get_logger("executor")

_SWITCH_INTERVAL_S: Final = 0.0002


@dataclass(frozen=True, slots=True)
class DeviceExecutorSettings:
    """device: cuda or cuda:N. attention: auto, triton, torch or a plug-in, see attention/device.py. load_format: auto
    reads the model's files, dummy draws random weights. pool_memory_bytes: what the block pool may take; 0 is what a
    worst-case step leaves. quantization: see loading/fp8.py. kv_cache_dtype: auto or fp8."""

    device: str = "cuda"
    attention: str = "auto"
    load_format: str = "auto"
    pool_memory_bytes: int = 0
    quantization: str = "auto"
    kv_cache_dtype: str = "auto"


class DeviceExecutor:
    """See executor.Executor."""

    def __init__(self, settings: DeviceExecutorSettings) -> None:
        self._settings = settings
        self._place = torch.device(settings.device)
        self._loaded: Loaded | None = None
        self._pipeline: Pipeline[Launched] | None = None
        self._masks: MaskBox | None = None
        self._stream = torch.cuda.Stream(self._place) if self._place.type == "cuda" else None
        self.compiled = CompileCounter()

    @property
    def device(self) -> str:
        """Where it runs."""
        return self._settings.device

    @property
    def busy_for_s(self) -> float:
        """How long the oldest unfinished step has run; 0 when idle."""
        return self._pipeline.busy_for_s if self._pipeline is not None else 0.0

    def load(self, source: ModelSource, report: Callable[[LoadProgress], None]) -> ModelDescription:
        """See Executor."""
        started = time.perf_counter()
        settings = self._settings
        is_dummy = settings.load_format == "dummy"
        files = open_dummy(source.path, is_lazy=True) if is_dummy else open_model(source.path)
        files = with_quantization(files, settings.quantization, keep=True)
        spec = spec_from_config(files.config, architecture(files))
        dtype = _dtype(source.dtype, self._place)
        is_fp8 = settings.kv_cache_dtype == "fp8"
        kv_dtype = torch.float8_e4m3fn if is_fp8 else dtype
        kernels = choose_kernels(settings.attention, _needs(spec, self._place, dtype, kv_dtype))
        counted = CountingSource(files.source)
        with self._on_stream():
            weights = load_weights(
                spec,
                counted,
                DevicePlacement(self._place, dtype),
                lambda done, total: report(LoadProgress(LoadPhase.WEIGHTS, done, total)),
            )
        self._loaded = Loaded(
            spec, weights, kernels, self._place, dtype, kv_dtype=kv_dtype,
            kv_scales=kv_scales(files, spec.num_layers) if is_fp8 else (),
        )  # fmt: skip
        log.info("weights loaded", seconds=round(time.perf_counter() - started, 2))
        return ModelDescription(
            id=source.served_model_name or served_name(files),
            architecture=spec.architecture,
            max_model_len=spec.max_model_len,
            vocab_size=spec.vocab_size,
            eos_token_ids=eos_token_ids(files),
            dtype=str(dtype).removeprefix("torch."),
            num_parameters=counted.num_parameters,
            created_unix_s=int(time.time()),
            fingerprint=fingerprint(files, spec.vocab_size),
            default_sampling=default_sampling(files),
        )

    def allocate(self, request: PoolRequest) -> PoolDescription:
        """See Executor."""
        loaded = self._loaded
        if loaded is None:
            raise ValueError("no model is loaded")
        started = time.perf_counter()
        with self._on_stream():
            request = with_defaults(request, loaded.spec.max_model_len)
            memory = profile(loaded, request, request.block_size or DEFAULT_BLOCK_SIZE)
            plan = plan_pool(
                loaded.spec,
                request,
                element_bytes=(loaded.kv_dtype or loaded.dtype).itemsize,
                free_bytes=memory.available,
                budget_bytes=self._settings.pool_memory_bytes or memory.available,
            )
            limits = SlotLimits(plan.max_num_seqs, plan.max_model_len, plan.block_size, plan.num_blocks)
            built = build_runner(loaded, limits, plan.max_tokens_per_step, plan.block_size)
            allocated = time.perf_counter()
            if self._place.type == "cuda" and loaded.kernels.is_capturable:
                built.graphs.capture()
        log.info(
            "pool allocated",
            num_blocks=plan.num_blocks,
            worst_step_mib=memory.worst_step >> 20,
            profile_s=round(allocated - started, 2),
            capture_s=round(time.perf_counter() - allocated, 2),
        )
        self.compiled.start()
        # Launching an eager step keeps the interpreter busy for milliseconds; whoever delivers results must not wait
        # for the usual 5 ms to get a turn.
        sys.setswitchinterval(_SWITCH_INTERVAL_S)
        self._pipeline, self._masks = Pipeline(built.runner, self._on_stream), built.runner.masks
        pool = built.pool
        return PoolDescription(
            num_blocks=plan.num_blocks,
            block_size=plan.block_size,
            block_bytes=pool[:, 0].numel() * pool.element_size(),
            max_num_seqs=plan.max_num_seqs,
            max_tokens_per_step=plan.max_tokens_per_step,
            max_model_len=plan.max_model_len,
        )

    def submit(self, plan: StepPlan, deliver: Deliver) -> None:
        """See Executor."""
        assert self._pipeline is not None
        loop = asyncio.get_running_loop()

        def report(result: StepOutcome | Exception) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(deliver, result)

        self._pipeline.submit(plan, report)

    def submit_plan(self, plan: StepPlan, report: Callable[[StepOutcome | Exception], None]) -> None:
        """As `submit`, without an event loop: `report` is called on the collecting thread."""
        assert self._pipeline is not None
        self._pipeline.submit(plan, report)

    @property
    def spec(self) -> DecoderSpec:
        """Of the loaded model."""
        assert self._loaded is not None
        return self._loaded.spec

    def mask(self, mask: StepMask) -> None:
        """See Executor."""
        assert self._masks is not None
        self._masks.put(mask)

    async def reset(self) -> None:
        """See Executor."""
        if self._pipeline is not None and self._masks is not None:
            self._masks.close()
            await asyncio.wrap_future(self._pipeline.reset())

    def unload(self) -> None:
        """See Executor. Captured graphs go with the pipeline, and with them the addresses they hold."""
        self.close()
        self._pipeline = self._masks = self._loaded = None

    def close(self) -> None:
        """See Executor."""
        if self._pipeline is not None and self._masks is not None:
            self._masks.close()
            self._pipeline.stop()
        if self.compiled.count:
            log.warning(
                "kernels were compiled while serving", count=self.compiled.count, names=self.compiled.names
            )

    @contextlib.contextmanager
    def _on_stream(self) -> Iterator[None]:
        """Everything is launched on one stream of its own: graphs can't be captured on the default one."""
        if self._stream is None:
            yield
            return
        with torch.cuda.device(self._place), torch.cuda.stream(self._stream):
            yield


def _needs(
    spec: DecoderSpec, device: torch.device, dtype: torch.dtype, kv_dtype: torch.dtype
) -> AttentionNeeds:
    return AttentionNeeds(
        device=device, num_heads=spec.num_heads, num_kv_heads=spec.num_kv_heads, head_dim=spec.head_dim, dtype=dtype,
        kv_dtype=kv_dtype, block_size=DEFAULT_BLOCK_SIZE, has_window=any(spec.windows),
    )  # fmt: skip


def _dtype(name: str, device: torch.device) -> torch.dtype:
    if name in ("", "auto"):
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    if name not in DTYPES:
        raise ValueError(f"dtype must be auto or one of {sorted(DTYPES)}, got {name!r}")
    return DTYPES[name]
