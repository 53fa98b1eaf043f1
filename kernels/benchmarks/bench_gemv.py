"""gemv: bytes of the weight per second, one projection at a time and as the four of a layer in a chain."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import torch
from gpu_timing import Report, graph_seconds

from quire_kernels.gemv.op import Plan, gemv

# name, N, K, keyword arguments
SHAPES = [
    ("8b qkv", 6144, 4096, {"norm": True}), ("8b o", 4096, 4096, {"residual": True}),
    ("8b gate_up", 14336, 4096, {"norm": True, "gated": True}), ("8b down", 4096, 14336, {"residual": True}),
    ("8b head", 128256, 4096, {"norm": True}),
    ("0.6b qkv", 4096, 1024, {"norm": True}), ("0.6b o", 1024, 2048, {"residual": True}),
    ("0.6b gate_up", 3072, 1024, {"norm": True, "gated": True}), ("0.6b down", 1024, 3072, {"residual": True}),
    ("0.6b head", 151936, 1024, {"norm": True}),
]  # fmt: skip
PLANS = [Plan(*p) for p in itertools.product((2, 4, 8, 16), (512, 1024), (2, 4))] + [
    Plan(2, 4096, 4), Plan(4, 4096, 4), Plan(4, 2048, 4), Plan(8, 2048, 8), Plan(8, 512, 1), Plan(4, 512, 1),
    Plan(2, 256, 1),
    Plan(4, 256, 1), Plan(8, 1024, 8), Plan(16, 1024, 8),
]  # fmt: skip


def _arguments(outputs: int, inputs: int, flags: dict[str, bool]) -> dict[str, Any]:
    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device="cuda", dtype=torch.bfloat16) * inputs**-0.5

    out = draw(1, outputs)
    height = outputs * (2 if flags.get("gated") else 1)
    return {
        "x": draw(1, inputs), "weight": draw(height, inputs), "norm": draw(inputs) if flags.get("norm") else None,
        "out": out, "residual": out if flags.get("residual") else None, "gated": flags.get("gated", False), "eps": 1e-5,
    }  # fmt: skip


def _in_fp8(arguments: dict[str, Any]) -> dict[str, Any]:
    weight = arguments["weight"]
    scale = weight.float().abs().amax(1) / 448
    return arguments | {"weight": (weight.float() / scale[:, None]).to(torch.float8_e4m3fn), "scale": scale}


def main(report: Report, sweep: bool) -> None:
    """All shapes, by the default plan or by every plan; then a model's layers in a row."""
    for name, outputs, inputs, flags in SHAPES:
        num_bytes = outputs * inputs * 2 * (2 if flags.get("gated") else 1)
        copies = [_arguments(outputs, inputs, flags) for _ in range(max(2, min(16, int(1.5e9 // num_bytes))))]
        for plan in PLANS if sweep else [None]:
            launches = [lambda a=arguments, plan=plan: gemv(**a, plan=plan, pdl=True) for arguments in copies]
            case = name if plan is None else f"{name} {plan}"
            report.add("gemv", case, graph_seconds(launches), num_bytes=num_bytes)
        if sweep or flags.get("gated"):
            continue
        launches = [lambda a=arguments: torch.mm(a["x"], a["weight"].T, out=a["out"]) for arguments in copies]
        report.add("cublas", name, graph_seconds(launches), num_bytes=num_bytes)
    for name, outputs, inputs, flags in SHAPES[:5]:
        copies = [_in_fp8(_arguments(outputs, inputs, flags)) for _ in range(6)]
        for plan in PLANS if sweep else [None]:
            run = [partial(gemv, **arguments, plan=plan, pdl=True) for arguments in copies]
            case = f"fp8 {name}" if plan is None else f"fp8 {name} {plan}"
            report.add("gemv", case, graph_seconds(run), num_bytes=copies[0]["weight"].nbytes)
        del copies
    for model in ("8b", "0.6b"):
        shapes = [shape for shape in SHAPES if shape[0].startswith(model) and "head" not in shape[0]]
        layers = [[_arguments(*shape[1:]) for shape in shapes] for _ in range(12)]
        launches = [lambda a=arguments: gemv(**a, pdl=True) for layer in layers for arguments in layer]
        num_bytes = sum(arguments["weight"].nbytes for arguments in layers[0])
        report.add(
            "gemv", f"{model} layer's four in a chain", 4 * graph_seconds(launches), num_bytes=num_bytes
        )
