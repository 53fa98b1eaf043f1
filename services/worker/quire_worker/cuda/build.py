"""Joins a loaded model, its pool and its buffers into a runner."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from quire_worker.cuda.graphs import StepGraphs
from quire_worker.cuda.model import DeviceModel, Loaded
from quire_worker.cuda.runner import DeviceRunner
from quire_worker.cuda.staging import Staging
from quire_worker.cuda.state import make_pool
from quire_worker.cuda.step_packing import capacity, head_size
from quire_worker.slots import SlotLimits


@dataclass(frozen=True, slots=True)
class Built:
    """A runner and its parts. No graph is captured yet."""

    runner: DeviceRunner
    graphs: StepGraphs
    pool: torch.Tensor


@torch.inference_mode()
def build_runner(loaded: Loaded, limits: SlotLimits, max_tokens: int, block_size: int) -> Built:
    """Allocate everything that a runner keeps."""
    pool = make_pool(
        loaded.spec, limits.num_blocks, block_size, loaded.device, loaded.kv_dtype or loaded.dtype
    )
    staging = Staging(head_size(limits), capacity(limits), loaded.device)
    model = DeviceModel(loaded, limits, max_tokens, pool, staging.device)
    graphs = StepGraphs(model, max_tokens)
    return Built(DeviceRunner(model, staging, graphs, max_tokens), graphs, pool)
