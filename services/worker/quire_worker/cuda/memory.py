"""How much memory the block pool may take: what a measured worst-case step leaves, never a guess."""

from __future__ import annotations

import gc
from dataclasses import dataclass, replace
from typing import Final

import torch

from quire_worker.cuda import warm_up
from quire_worker.cuda.build import build_runner
from quire_worker.cuda.model import Loaded
from quire_worker.executor import PoolRequest
from quire_worker.sizing import free_host_bytes
from quire_worker.slots import SlotLimits
from quire_worker.step import NewSequence, SamplingParams, StepPlan

DEFAULT_MAX_NUM_SEQS: Final = 256
DEFAULT_MAX_TOKENS_PER_STEP: Final = 8192
DEFAULT_MAX_MODEL_LEN: Final = 8192
# Share of the device's memory that this process may use in all.
MEMORY_SHARE: Final = 0.92
# Captured graphs keep their intermediate results and logits.
_GRAPH_BYTES: Final = 5 << 29


@dataclass(frozen=True, slots=True)
class MemoryReport:
    """Bytes: of the device, in use once the weights are there, and what the worst step needs beside them."""

    total: int
    in_use: int
    worst_step: int
    available: int


def with_defaults(request: PoolRequest, model_max_len: int) -> PoolRequest:
    """The request with the defaults of an accelerator. A model's whole context is not the default: its tables alone
    would be large."""
    max_num_seqs = request.max_num_seqs or DEFAULT_MAX_NUM_SEQS
    return replace(
        request,
        max_num_seqs=max_num_seqs,
        max_tokens_per_step=request.max_tokens_per_step or max(DEFAULT_MAX_TOKENS_PER_STEP, max_num_seqs),
        max_model_len=request.max_model_len or min(model_max_len, DEFAULT_MAX_MODEL_LEN),
    )


def profile(loaded: Loaded, request: PoolRequest, block_size: int) -> MemoryReport:
    """Run the largest step that the request allows, with log-probabilities, on a pool of two blocks, and see what it
    takes. Where kernels are compiled, every kind of step is run beside it."""
    if loaded.device.type != "cuda":
        _run_worst_step(
            loaded, replace(request, max_tokens_per_step=min(64, request.max_tokens_per_step)), block_size
        )
        free = free_host_bytes()
        return MemoryReport(free, 0, 0, free // 2)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    _run_worst_step(loaded, request, block_size)
    worst = torch.cuda.max_memory_allocated() - before
    gc.collect()
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(loaded.device)
    in_use = total - free
    available = int(total * MEMORY_SHARE) - in_use - worst - _GRAPH_BYTES
    return MemoryReport(total, in_use, worst, max(0, available))


def _run_worst_step(loaded: Loaded, request: PoolRequest, block_size: int) -> None:
    limits = SlotLimits(request.max_num_seqs, request.max_model_len, block_size, num_blocks=2)
    tokens = request.max_tokens_per_step
    runner = build_runner(loaded, limits, tokens, block_size).runner
    num_seqs = min(request.max_num_seqs, tokens)
    length = min(tokens // num_seqs, request.max_model_len - 1)
    # All sequences share one block: what they read and write there does not matter.
    blocks = [1] * -(-(length + 1) // block_size)
    # Every row asks for all that is worked out beside it.
    asking = SamplingParams(top_p=0.9, seed=1, num_logprobs=20, frequency_penalty=0.1)
    sampling = [asking] * num_seqs
    sequences = [
        NewSequence(slot, [0] * length, length, 0, blocks, sampling[slot]) for slot in range(num_seqs)
    ]
    plans = [
        StepPlan(0, list(range(num_seqs)), [length] * num_seqs, new_sequences=sequences),
        StepPlan(1, list(range(num_seqs)), [1] * num_seqs),
        StepPlan(2, [0], [1], released_slots=list(range(1, num_seqs))),
    ]
    for plan in plans:
        runner.finish(runner.launch(plan))
    runner.reset()
    if loaded.kernels.is_capturable:
        warm_up.run_all(runner, limits, tokens)
