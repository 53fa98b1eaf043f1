"""Chooses how a decoder runs on a device: the CPU program where its kernels fit, plain torch everywhere else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from quire_worker.attention.registry import create_attention
from quire_worker.input_batch import InputBatch
from quire_worker.kv_cache import BlockPool
from quire_worker.layers.base import Placement
from quire_worker.models.decoder import DecoderWeights
from quire_worker.models.spec import DecoderSpec
from quire_worker.runner import Forward
from quire_worker.sampling.draw import Draw, KernelDraw, draw_in_numpy

DTYPES: Final = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
# The name of the CPU program among the attention backends.
CPU_PROGRAM: Final = "cpu"


@dataclass(frozen=True, slots=True)
class Backend:
    """A chosen way to run. note: why it is not the fastest one, for the log; empty if it is."""

    kind: Literal["program", "eager"]
    device: torch.device
    dtype: torch.dtype
    attention: str
    num_threads: int
    note: str = ""

    def placement(self) -> Placement:
        """Where the loader is to put weights."""
        if self.kind == "program":
            from quire_worker.layers.program import PackedPlacement

            return PackedPlacement()
        from quire_worker.layers.eager import TensorPlacement

        return TensorPlacement(self.device, self.dtype)

    def forward(
        self,
        spec: DecoderSpec,
        weights: DecoderWeights,
        batch: InputBatch,
        pool: BlockPool,
        block_tables: NDArray[np.int32],
    ) -> Forward:
        """The decoder, bound to its inputs and its pool."""
        if self.kind == "program":
            from quire_worker.layers.program import ProgramForward, Shared

            return ProgramForward(spec, weights, Shared(batch, pool, block_tables, self.num_threads))
        from quire_worker.layers.eager import EagerForward

        return EagerForward(spec, weights, batch, pool, block_tables, create_attention(self.attention))

    def draw(self, spec: DecoderSpec, max_rows: int) -> Draw:
        """How tokens are drawn."""
        if self.kind == "program":
            return KernelDraw(max_rows, spec.vocab_size, self.num_threads)
        return draw_in_numpy


def choose_backend(
    spec: DecoderSpec, *, device: str, dtype: str, attention: str = "auto", num_threads: int = 0
) -> Backend:
    """Choose for a model. attention: auto, cpu, torch or a plug-in's name; num_threads: 0 is one per core.

    ValueError: a dtype the device's kernels don't compute in, or a named backend that can't run the model.
    """
    place = torch.device(device)
    kind = _dtype(dtype, place)
    threads = num_threads or torch.get_num_threads()
    if attention not in ("auto", CPU_PROGRAM):
        create_attention(attention)
        return Backend("eager", place, kind, attention, threads)
    reason = _program_refusal(spec, place, kind)
    if not reason:
        return Backend("program", place, kind, CPU_PROGRAM, threads)
    if attention == CPU_PROGRAM:
        raise ValueError(f"attention backend {CPU_PROGRAM!r} can't run here: {reason}")
    return Backend("eager", place, kind, "torch", threads, note=reason)


def _dtype(name: str, device: torch.device) -> torch.dtype:
    if name in ("", "auto"):
        return torch.float32 if device.type == "cpu" else torch.bfloat16
    if name not in DTYPES:
        raise ValueError(f"dtype must be auto or one of {sorted(DTYPES)}, got {name!r}")
    return DTYPES[name]


def _program_refusal(spec: DecoderSpec, device: torch.device, dtype: torch.dtype) -> str:
    """Why the CPU program can't be used; empty if it can."""
    if device.type != "cpu":
        return f"the device is {device}"
    if dtype != torch.float32:
        return f"the CPU kernels compute in float32, not in {dtype}"
    try:
        from quire_worker.layers.program import unsupported_reason
    except ImportError as error:
        return f"the CPU kernels' compiler is missing ({error.name})"
    return unsupported_reason(spec)
