"""Prefill attention: operations per second, counted over the pairs that causality leaves."""

from __future__ import annotations

import torch
from gpu_timing import Report, graph_seconds

from quire_kernels.prefill_attention.cases import PrefillCase
from quire_kernels.prefill_attention.op import Plan, prefill_attention

CASES = [
    PrefillCase("8b prompt of 4096", ((4096, 4096),), 32, 8, 128),
    PrefillCase("8b 8 prompts of 1024", ((1024, 1024),) * 8, 32, 8, 128),
    PrefillCase("8b 128 after 4096, 8 of them", ((128, 4224),) * 8, 32, 8, 128),
]
PLANS = [
    Plan(*p)
    for p in (
        (64, 64, 4, 2), (64, 64, 4, 3), (64, 64, 4, 4), (128, 128, 8, 3), (128, 64, 8, 3), (64, 32, 4, 3),
        (64, 32, 4, 5),
        (64, 128, 4, 3), (64, 128, 8, 3), (128, 64, 8, 5),
    )
]  # fmt: skip


def main(report: Report, sweep: bool) -> None:
    """All cases, by the default plan or by every plan; beside them torch's own attention on contiguous keys."""
    for case in CASES:
        inputs = case.inputs(torch.bfloat16, "cuda")
        out = torch.empty(len(inputs["qkv"]), 32 * 128, device="cuda", dtype=torch.bfloat16)
        pairs = sum(count * (2 * length - count + 1) // 2 for count, length in case.sequences)
        flops = 4 * 32 * 128 * pairs
        for plan in PLANS if sweep else [None]:
            seconds = graph_seconds(
                [lambda plan=plan, i=inputs, o=out: prefill_attention(**i, out=o, plan=plan)] * 8
            )
            name = case.name if plan is None else f"{case.name} {plan}"
            report.add("prefill_attention", name, seconds, num_flops=flops)
    _torch_attention(report)


def _torch_attention(report: Report) -> None:
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    qkv = torch.randn(4096, 48, 128, device="cuda", dtype=torch.bfloat16)
    queries, keys, values = (part.transpose(0, 1)[None] for part in qkv.split([32, 8, 8], dim=1))
    flops = 4 * 32 * 128 * 4096 * 4097 // 2
    for backend in (SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION):
        with sdpa_kernel(backend):
            seconds = graph_seconds(
                [lambda: scaled_dot_product_attention(queries, keys, values, is_causal=True, enable_gqa=True)]
                * 8
            )
        report.add("torch attention", f"8b prompt of 4096 {backend.name}", seconds, num_flops=flops)
