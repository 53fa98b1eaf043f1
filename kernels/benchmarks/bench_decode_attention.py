"""Decode attention: bytes of keys and values per second."""

from __future__ import annotations

from functools import partial

import torch
from gpu_timing import Report, graph_seconds

from quire_kernels.decode_attention.op import DecodeWorkspace, Plan, decode_attention
from quire_kernels.gpu.rope import Rope

# name, sequences, shortest and longest, query heads, key heads
SHAPES = [
    ("8b batch 1 at 256", 1, 256, 256, 32, 8), ("8b batch 1 at 4096", 1, 4096, 4096, 32, 8),
    ("8b batch 32 at 512-768", 32, 512, 768, 32, 8), ("8b batch 256 at 1024-1280", 256, 1024, 1280, 32, 8),
    ("8b batch 64 at 16-4096", 64, 16, 4096, 32, 8), ("0.6b batch 32 at 512-768", 32, 512, 768, 16, 8),
]  # fmt: skip
PLANS = [
    Plan(*p)
    for p in (
        (1, 256, 64, 4, 3), (2, 256, 64, 4, 3), (2, 256, 64, 2, 3), (4, 256, 64, 4, 3), (4, 1024, 64, 2, 5),
        (4, 2048, 64, 4, 3), (8, 512, 64, 4, 3), (8, 256, 128, 4, 3), (16, 256, 128, 4, 3), (16, 64, 64, 4, 5),
    )
]  # fmt: skip


def main(report: Report, sweep: bool) -> None:
    """All shapes, by the default plan or by every plan."""
    for name, seqs, shortest, longest, heads, kv_heads in SHAPES:
        lengths = torch.linspace(shortest, longest, seqs).int()
        lengths = lengths[torch.randperm(seqs)].cuda()
        blocks = -(-longest // 16)
        num_bytes = int(lengths.sum()) * 2 * kv_heads * 128 * 2
        # Far more than the L2 cache holds: a few small pools would be read from it, and favour other plans.
        layers = max(2, min(256, int(3e8 // num_bytes)))
        tables = (torch.randperm(seqs * blocks).int() + 1).view(seqs, blocks).cuda()
        shape = (seqs * blocks + 1, 2, kv_heads, 16, 128)
        pools = [torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(layers)]
        qkv = torch.randn(seqs, (heads + 2 * kv_heads) * 128, device="cuda", dtype=torch.bfloat16)
        out = torch.empty(seqs, heads * 128, device="cuda", dtype=torch.bfloat16)
        angles = torch.outer(torch.arange(8192.0), torch.linspace(1, 0.001, 64)).cuda()
        rope = Rope(angles.cos().contiguous(), angles.sin().contiguous())
        workspace = DecodeWorkspace("cuda", seqs, heads, kv_heads, 128)
        rows = torch.arange(seqs, dtype=torch.int32, device="cuda")
        for plan in PLANS if sweep else [None]:
            arguments = (lengths, rows, tables, out, workspace)
            options = {"num_heads": heads, "scale": 128**-0.5, "rope": rope, "plan": plan, "pdl": True}
            launches = [partial(decode_attention, qkv, pool, *arguments, **options) for pool in pools]
            case = name if plan is None else f"{name} {plan}"
            report.add("decode_attention", case, graph_seconds(launches), num_bytes=num_bytes)
        del pools
