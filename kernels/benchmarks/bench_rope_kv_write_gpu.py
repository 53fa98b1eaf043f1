"""rope_kv_write on the GPU: bytes per second."""

from __future__ import annotations

from functools import partial

import torch
from gpu_timing import Report, graph_seconds

from quire_kernels.gpu.rope import Rope
from quire_kernels.rope_kv_write.gpu import rope_kv_write_gpu


def main(report: Report, sweep: bool) -> None:
    """A mixed batch and a prefill of the 8B shape."""
    del sweep
    angles = torch.outer(torch.arange(8192.0), torch.linspace(1, 0.001, 64)).cuda()
    rope = Rope(angles.cos(), angles.sin())
    for tokens in (256, 4096):
        launches = []
        for _ in range(8):
            qkv = torch.randn(tokens, 48 * 128, device="cuda", dtype=torch.bfloat16)
            pool = torch.empty(tokens // 16 + 1, 2, 8, 16, 128, device="cuda", dtype=torch.bfloat16)
            slots = torch.arange(16, tokens + 16, device="cuda")
            positions = torch.arange(tokens, device="cuda", dtype=torch.int32)
            launches.append(
                partial(rope_kv_write_gpu, qkv, positions, slots, rope, pool, num_heads=32, pdl=True)
            )
        num_bytes = tokens * 128 * 2 * (2 * 32 + 2 * 16)
        report.add("rope_kv_write", f"{tokens} tokens", graph_seconds(launches), num_bytes=num_bytes)
