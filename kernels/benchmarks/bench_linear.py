"""Linear on SmolLM2-135M's shapes: bytes of weights per second at one row, operations per second at many."""

import numpy as np
from timing import copy_gb_per_s, program_seconds, report

from quire_kernels.cpu.memory import zeros
from quire_kernels.cpu.target import TARGET
from quire_kernels.cpu.team import available_cores
from quire_kernels.linear import cpu
from quire_kernels.linear.cases import random_weight
from quire_kernels.linear.packing import pack

if __name__ == "__main__":
    print(f"copy: {copy_gb_per_s():.1f} GB/s")
    for kind in ("f32", "bf16", "q8_0", "q4_1"):
        for outputs, inputs in ((3072, 576), (576, 1536)):
            weights = [pack([random_weight(kind, outputs, inputs, seed)]) for seed in range(20)]
            for rows in (1, 8, 32, 128, 512):
                x = zeros((rows + TARGET.max_tile_rows, inputs), np.float32)
                out = zeros((rows + TARGET.max_tile_rows, outputs), np.float32)
                room = cpu.scratch(available_cores(), inputs)
                steps = [cpu.bind(weight, x, out, np.array([rows]), room) for weight in weights]
                report(
                    "linear", f"{kind} {rows}x{outputs}x{inputs}", program_seconds(steps),
                    num_bytes=weights[0].data.nbytes, num_flops=2 * rows * outputs * inputs,
                )  # fmt: skip
