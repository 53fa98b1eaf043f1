"""Which executor runs a model: the encoders' for encoders, else the one that the device wants.

One job: look into the model's config once it is named, and hand everything on. Knows no gRPC.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import torch

from quire_worker.encoders.executor import EncoderExecutor, EncoderExecutorSettings
from quire_worker.encoders.registry import is_encoder
from quire_worker.executor import (
    Deliver,
    Executor,
    LoadProgress,
    ModelDescription,
    ModelSource,
    ModelTask,
    PoolDescription,
    PoolRequest,
)
from quire_worker.model_executor import ModelExecutor, ModelExecutorSettings
from quire_worker.pooling.params import PoolingMethod
from quire_worker.settings import WorkerSettings
from quire_worker.step import StepMask, StepPlan

_DECODER_TASKS: Final[Mapping[str, tuple[ModelTask, ...]]] = {
    "auto": (ModelTask.GENERATE,),
    "embed": (ModelTask.EMBED, ModelTask.SCORE),
    "all": (ModelTask.GENERATE, ModelTask.EMBED, ModelTask.SCORE),
}


class ChosenExecutor:
    """See executor.Executor. Everything but `load` goes to the executor that the load chose."""

    def __init__(self, settings: WorkerSettings) -> None:
        self._settings = settings
        self._chosen: Executor | None = None

    @property
    def device(self) -> str:
        """Where it runs."""
        return self._settings.device if self._chosen is None else self._chosen.device

    def load(self, source: ModelSource, report: Callable[[LoadProgress], None]) -> ModelDescription:
        """See Executor. ValueError too for settings that the model's kind does not have."""
        architecture = _architecture(Path(source.path).expanduser())
        self._chosen = self._encoders(architecture) or self._decoders()
        return self._chosen.load(source, report)

    def allocate(self, request: PoolRequest) -> PoolDescription:
        """See Executor."""
        if self._chosen is None:
            raise ValueError("no model is loaded")
        return self._chosen.allocate(request)

    def submit(self, plan: StepPlan, deliver: Deliver) -> None:
        """See Executor."""
        assert self._chosen is not None, "submit before load"
        self._chosen.submit(plan, deliver)

    def mask(self, mask: StepMask) -> None:
        """See Executor."""
        assert self._chosen is not None, "mask before load"
        self._chosen.mask(mask)

    async def reset(self) -> None:
        """See Executor."""
        if self._chosen is not None:
            await self._chosen.reset()

    def unload(self) -> None:
        """See Executor."""
        if self._chosen is not None:
            self._chosen.unload()
            self._chosen = None
            # What start-up made was frozen: cycles among it (modules and their hooks) would keep the weights for ever.
            gc.unfreeze()
            gc.collect()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()

    def close(self) -> None:
        """See Executor."""
        if self._chosen is not None:
            self._chosen.close()

    @property
    def _method(self) -> PoolingMethod | None:
        return None if self._settings.pooling == "auto" else PoolingMethod(self._settings.pooling)

    def _encoders(self, architecture: str) -> Executor | None:
        """The encoders' executor; None for another model."""
        if not is_encoder(architecture):
            return None
        settings = self._settings
        if settings.task == "all":
            raise ValueError(f"task: all is for generative models; {architecture} is an encoder")
        if settings.load_format != "auto":
            raise ValueError(f"load_format: {settings.load_format} is for generative models only")
        return EncoderExecutor(
            EncoderExecutorSettings(
                device=settings.device, num_threads=settings.num_threads, pooling=self._method
            )
        )

    def _decoders(self) -> Executor:
        settings = self._settings
        if settings.device != "cpu":
            if settings.task != "auto":
                raise ValueError(f"task: {settings.task} of a generative model is served on the CPU only")
            # Imported only where it is used: it wants a device.
            from quire_worker.cuda.executor import DeviceExecutor, DeviceExecutorSettings

            return DeviceExecutor(
                DeviceExecutorSettings(
                    device=settings.device,
                    attention=settings.attention,
                    load_format=settings.load_format,
                    pool_memory_bytes=settings.pool_memory_bytes,
                    quantization=settings.quantization,
                    kv_cache_dtype=settings.kv_cache_dtype,
                )
            )
        if settings.kv_cache_dtype != "auto":
            raise ValueError(
                f"kv_cache_dtype: {settings.kv_cache_dtype} is for a GPU; a CPU's pool is in float32"
            )
        return ModelExecutor(
            ModelExecutorSettings(
                device=settings.device,
                num_threads=settings.num_threads,
                attention=settings.attention,
                pool_memory_bytes=settings.pool_memory_bytes,
                load_format=settings.load_format,
                quantization=settings.quantization,
                has_raw_logprobs=settings.logprobs_mode == "raw",
                tasks=_DECODER_TASKS[settings.task],
                pooling=self._method,
            )
        )


def _architecture(place: Path) -> str:
    """The architecture a folder's config.json names; empty without one: the loader says what is wrong."""
    config_path = place / "config.json"
    if not config_path.is_file():
        return ""
    config: Any = json.loads(config_path.read_text(encoding="utf-8"))
    names = config.get("architectures") if isinstance(config, dict) else None
    return str(names[0]) if names else ""
