"""How many blocks a memory budget holds beside the largest step, and the refusal that names the numbers. Pure
arithmetic but for one reading of the machine's free memory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from quire_worker.executor import PoolRequest, PoolTooLarge
from quire_worker.models.spec import DecoderSpec

DEFAULT_BLOCK_SIZE: Final = 16
DEFAULT_MAX_NUM_SEQS: Final = 64
DEFAULT_MAX_TOKENS_PER_STEP: Final = 512
# Without a budget of its own the pool takes this share of the free memory, and not more than the cap.
_DEFAULT_SHARE: Final = 0.4
_DEFAULT_CAP_BYTES: Final = 1 << 30
_MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class PoolPlan:
    """Sizes with every default resolved."""

    num_blocks: int
    block_size: int
    max_num_seqs: int
    max_tokens_per_step: int
    max_model_len: int


@dataclass(frozen=True, slots=True)
class StepSizes:
    """What a step may hold, with every default resolved."""

    block_size: int
    max_num_seqs: int
    max_tokens_per_step: int
    max_model_len: int


def step_sizes(spec: DecoderSpec, request: PoolRequest) -> StepSizes:
    """Resolve the sizes of a request that don't depend on memory. ValueError: sizes that can't be."""
    block_size = request.block_size or DEFAULT_BLOCK_SIZE
    max_model_len = request.max_model_len or spec.max_model_len
    max_num_seqs = request.max_num_seqs or DEFAULT_MAX_NUM_SEQS
    max_tokens = request.max_tokens_per_step or max(DEFAULT_MAX_TOKENS_PER_STEP, max_num_seqs)
    if max_model_len > spec.max_model_len:
        raise ValueError(f"max_model_len {max_model_len} is above the model's {spec.max_model_len}")
    if block_size % 16:
        raise ValueError(f"block_size must be a multiple of 16, got {block_size}")
    if max_tokens < max_num_seqs:
        raise ValueError(f"max_tokens_per_step {max_tokens} is below max_num_seqs {max_num_seqs}")
    return StepSizes(block_size, max_num_seqs, max_tokens, max_model_len)


def plan_pool(
    spec: DecoderSpec,
    request: PoolRequest,
    *,
    element_bytes: int,
    free_bytes: int,
    step_bytes: int = 0,
    budget_bytes: int = 0,
) -> PoolPlan:
    """Resolve a request. free_bytes: memory free once the weights are in place; step_bytes: what the largest step takes
    of it, as measured; budget_bytes: 0 is the default share of the rest. ValueError: sizes that can't be; PoolTooLarge:
    not one longest sequence fits.
    """
    sizes = step_sizes(spec, request)
    block_size, max_num_seqs, max_model_len = sizes.block_size, sizes.max_num_seqs, sizes.max_model_len
    block_bytes = block_size * spec.kv_bytes_per_token(element_bytes)
    room = max(0, free_bytes - step_bytes)
    budget = min(budget_bytes or min(int(room * _DEFAULT_SHARE), _DEFAULT_CAP_BYTES), room)
    blocks_per_seq = -(-max_model_len // block_size)
    # Block 0 is the null block; more than every slot's longest sequence is never used.
    useful = 1 + blocks_per_seq * max_num_seqs
    num_blocks = request.num_blocks or min(budget // block_bytes, useful)
    numbers = (
        f"a block of {block_size} tokens takes {block_bytes} bytes; {free_bytes // _MIB} MiB are free, the largest "
        f"step ({max_num_seqs} sequences, {sizes.max_tokens_per_step} tokens) takes {step_bytes // _MIB} MiB, "
        f"the pool's budget is {budget // _MIB} MiB = {budget // block_bytes} blocks"
    )
    if request.num_blocks * block_bytes > room:
        needed = request.num_blocks * block_bytes // _MIB
        raise PoolTooLarge(f"{request.num_blocks} blocks need {needed} MiB; {numbers}")
    if num_blocks < 1 + blocks_per_seq:
        raise PoolTooLarge(
            f"one sequence of max_model_len {max_model_len} tokens needs {1 + blocks_per_seq} blocks; {numbers}. "
            f"Lower max_model_len, max_num_seqs or max_tokens_per_step, or give the pool more memory"
        )
    return PoolPlan(num_blocks, block_size, max_num_seqs, sizes.max_tokens_per_step, max_model_len)


def free_host_bytes() -> int:
    """Memory this process can still take: what the kernel calls available, or less if a control group limits it."""
    available = _meminfo("MemAvailable")
    limit, used = _number("/sys/fs/cgroup/memory.max"), _number("/sys/fs/cgroup/memory.current")
    if limit is not None and used is not None:
        available = min(available, max(0, limit - used))
    return available


def _meminfo(key: str) -> int:
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        name, _, value = line.partition(":")
        if name == key:
            return int(value.split()[0]) * 1024
    raise RuntimeError(f"/proc/meminfo has no {key}")


def _number(path: str) -> int | None:
    try:
        text = Path(path).read_text(encoding="ascii").strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
