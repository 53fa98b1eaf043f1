"""skinny_linear: bytes of the weight per second, beside cuBLAS."""

from __future__ import annotations

import itertools
from functools import partial

import torch
from gpu_timing import Report, graph_seconds

from quire_kernels.skinny_linear.op import Plan, SkinnyWorkspace, skinny_linear

# name, N, K, gated, splits to try
SHAPES = [
    ("8b qkv", 6144, 4096, False, (1, 2, 4)), ("8b o", 4096, 4096, False, (2, 4, 8)),
    ("8b gate_up", 14336, 4096, True, (1, 2)), ("8b down", 4096, 14336, False, (2, 4, 8)),
    ("8b head", 128256, 4096, False, (1,)), ("0.6b qkv", 4096, 1024, False, (1, 2)),
    ("0.6b o", 1024, 2048, False, (2, 4, 8)), ("0.6b gate_up", 3072, 1024, True, (1, 2)),
    ("0.6b down", 1024, 3072, False, (4, 8)),
]  # fmt: skip
TILES = [(64, 128), (64, 256), (32, 128)]
STAGES = (3, 4, 6)


def main(report: Report, sweep: bool) -> None:
    """The projections of the 8B shape, by the default plan or by every plan."""
    workspace = SkinnyWorkspace("cuda")
    for name, outputs, inputs, gated, splits in SHAPES:
        height = outputs * (2 if gated else 1)
        num_bytes = height * inputs * 2
        copies = max(2, min(12, int(1.5e9 // num_bytes)))
        weights = [
            torch.randn(height, inputs, device="cuda", dtype=torch.bfloat16) * inputs**-0.5
            for _ in range(copies)
        ]
        for rows in (32,) if sweep else (2, 8, 16, 32, 64):
            x = torch.randn(rows, inputs, device="cuda", dtype=torch.bfloat16)
            out = torch.empty(rows, outputs, device="cuda", dtype=torch.bfloat16)
            wide = torch.empty(rows, height, device="cuda", dtype=torch.bfloat16)
            plans = [
                Plan(*tile, split, 4, stage) for tile, split, stage in itertools.product(TILES, splits, STAGES)
                if tile[0] * tile[1] * stage * (2 if gated else 1) <= 90_000
            ]  # fmt: skip
            for plan in plans if sweep else [None]:
                run = [
                    partial(skinny_linear, x, weight, out, workspace, gated=gated, plan=plan, pdl=True)
                    for weight in weights
                ]
                case = f"{name} m={rows}" + ("" if plan is None else f" {plan}")
                report.add("skinny_linear", case, graph_seconds(run), num_bytes=num_bytes)
            run = [partial(torch.mm, x, weight.T, out=wide) for weight in weights]
            report.add("cublas", f"{name} m={rows}", graph_seconds(run), num_bytes=num_bytes)
