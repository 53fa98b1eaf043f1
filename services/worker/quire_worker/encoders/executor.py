"""The encoders' executor: loads one, needs no pool, and runs plans on the engine thread. Knows no gRPC.

Fulfils executor.Executor.
"""

# ruff: noqa: E402
from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

from quire_kernels.cpu.environment import prepare_process

# Thread waiting is settled when torch is imported, which happens just below.
prepare_process()

import torch

from quire_worker.encoders.model import Encoder
from quire_worker.encoders.registry import encoder_spec
from quire_worker.encoders.runner import DEFAULT_METHOD, EncoderRunner
from quire_worker.encoders.spec import EncoderSpec
from quire_worker.encoders.weights import load_encoder
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
from quire_worker.loading.open import architecture, fingerprint, open_model, served_name
from quire_worker.loading.weight_count import CountingSource
from quire_worker.pooling.files import longest_text, pooling_defaults
from quire_worker.pooling.params import PoolingDefaults, PoolingMethod
from quire_worker.step import StepMask, StepOutcome, StepPlan

_DTYPES = {
    "auto": torch.float32,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
_DEFAULT_MAX_NUM_SEQS = 256
_DEFAULT_MAX_TOKENS = 2048


@dataclass(frozen=True, slots=True)
class EncoderExecutorSettings:
    """device: cpu, cuda or cuda:N. num_threads: 0 is one per core. pooling: None is what the model's files say."""

    device: str = "cpu"
    num_threads: int = 0
    pooling: PoolingMethod | None = None


class EncoderExecutor:
    """See executor.Executor."""

    def __init__(self, settings: EncoderExecutorSettings) -> None:
        self._settings = settings
        self._encoder: Encoder | None = None
        self._defaults = PoolingDefaults(DEFAULT_METHOD)
        self._max_model_len = 0
        self._engine: Engine | None = None

    @property
    def device(self) -> str:
        """Where it runs."""
        return self._settings.device

    def load(self, source: ModelSource, report: Callable[[LoadProgress], None]) -> ModelDescription:
        """See Executor."""
        settings = self._settings
        if settings.num_threads:
            torch.set_num_threads(settings.num_threads)
        files = open_model(source.path)
        spec = encoder_spec(files.config, architecture(files))
        self._defaults = pooling_defaults(source.path, DEFAULT_METHOD)
        if settings.pooling is not None:
            self._defaults = PoolingDefaults(settings.pooling, self._defaults.normalize)
        self._max_model_len = min(spec.max_model_len, longest_text(source.path) or spec.max_model_len)
        dtype, counted = _DTYPES[source.dtype], CountingSource(files.source)
        weights = load_encoder(
            spec,
            counted,
            torch.device(settings.device),
            dtype,
            lambda done, total: report(LoadProgress(LoadPhase.WEIGHTS, done, total)),
        )
        self._encoder = Encoder(spec, weights)
        return ModelDescription(
            id=source.served_model_name or served_name(files),
            architecture=spec.architecture,
            max_model_len=self._max_model_len,
            vocab_size=spec.vocab_size,
            eos_token_ids=(),
            dtype=str(dtype).removeprefix("torch."),
            num_parameters=counted.num_parameters,
            created_unix_s=int(time.time()),
            fingerprint=fingerprint(files, spec.vocab_size),
            tasks=_tasks(spec),
            embedding_size=0 if spec.classifier is not None else spec.hidden_size,
            labels=spec.classifier.labels if spec.classifier is not None else (),
        )

    def allocate(self, request: PoolRequest) -> PoolDescription:
        """See Executor. There are no blocks but the null block; a text must fit into one step."""
        if self._encoder is None:
            raise ValueError("no model is loaded")
        if request.num_blocks:
            raise ValueError(
                f"num_blocks must be 0 for an encoder, which keeps no blocks; got {request.num_blocks}"
            )
        max_tokens = request.max_tokens_per_step or max(_DEFAULT_MAX_TOKENS, self._max_model_len)
        max_model_len = request.max_model_len or min(self._max_model_len, max_tokens)
        longest = min(max_tokens, self._encoder.spec.max_model_len)
        if max_model_len > longest:
            raise ValueError(
                f"max_model_len {max_model_len} is above {longest}: a text must fit into one step of {max_tokens} "
                f"tokens, and the model has {self._encoder.spec.max_model_len} positions"
            )
        self._engine = Engine(EncoderRunner(self._encoder, self._defaults, torch.device(self.device)))
        return PoolDescription(
            num_blocks=1,
            block_size=request.block_size or 16,
            block_bytes=0,
            max_num_seqs=request.max_num_seqs or min(_DEFAULT_MAX_NUM_SEQS, max_tokens),
            max_tokens_per_step=max_tokens,
            max_model_len=max_model_len,
        )

    def submit(self, plan: StepPlan, deliver: Deliver) -> None:
        """See Executor."""
        assert self._engine is not None, "submit before allocate"
        loop = asyncio.get_running_loop()

        def done(future: Future[StepOutcome]) -> None:
            error = future.exception()
            result = error if isinstance(error, Exception) else future.result()
            if not loop.is_closed():
                loop.call_soon_threadsafe(deliver, result)

        self._engine.submit(plan).add_done_callback(done)

    def mask(self, mask: StepMask) -> None:
        """See Executor. Nothing is sampled, so a mask is for no step."""
        raise ValueError(f"a mask for step {mask.step_id}, but an encoder samples nothing")

    async def reset(self) -> None:
        """See Executor."""
        if self._engine is not None:
            await asyncio.wrap_future(self._engine.reset())

    def unload(self) -> None:
        """See Executor."""
        self.close()
        self._engine = self._encoder = None

    def close(self) -> None:
        """See Executor."""
        if self._engine is not None:
            self._engine.stop()


def _tasks(spec: EncoderSpec) -> tuple[ModelTask, ...]:
    """A head with one class is a cross-encoder: it scores pairs."""
    if spec.classifier is None:
        return (ModelTask.EMBED, ModelTask.SCORE)
    return (ModelTask.SCORE,) if len(spec.classifier.labels) == 1 else (ModelTask.CLASSIFY,)
