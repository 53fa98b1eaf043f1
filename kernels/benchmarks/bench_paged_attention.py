"""Paged attention: bytes of keys and values per second when decoding, operations per second in prefills."""

import numpy as np
from timing import program_seconds, report

from quire_kernels.cpu.team import available_cores
from quire_kernels.paged_attention import cpu
from quire_kernels.paged_attention.cases import AttentionCase

if __name__ == "__main__":
    for name, sequences in (
        ("1 decode at 256", ((1, 256),)), ("8 decodes at 256", ((1, 256),) * 8),
        ("32 decodes at 256", ((1, 256),) * 32),
        ("1 decode at 2048", ((1, 2048),)), ("prefill of 128", ((128, 128),)), ("prefill of 1024", ((1024, 1024),)),
    ):  # fmt: skip
        case = AttentionCase(name, sequences)
        inputs = case.inputs()
        queries = inputs["queries"].numpy().reshape(-1, case.num_heads * case.head_dim)
        step = cpu.bind(
            queries, np.zeros_like(queries), inputs["pool"].numpy(), inputs["query_start_loc"].numpy(),
            inputs["seq_lens"].numpy(), np.arange(len(sequences), dtype=np.int32), inputs["block_tables"].numpy(),
            np.array([len(sequences)]), cpu.scratch(available_cores(), 3, 64), num_heads=9, scale=inputs["scale"],
        )  # fmt: skip
        pairs = sum(count * (2 * length - count + 1) // 2 for count, length in sequences)
        report(
            "paged_attention", name, program_seconds([step]),
            num_bytes=sum(length for _, length in sequences) * 2 * 3 * 64 * 4, num_flops=pairs * 9 * 64 * 4,
        )  # fmt: skip
