"""Linear on SmolLM2-135M's shapes: bytes of weights per second at one row, operations per second at many."""

import numpy as np
from timing import copy_gb_per_s, program_seconds, report

from quire_kernels.cpu.amx import has_amx
from quire_kernels.cpu.memory import zeros
from quire_kernels.cpu.target import TARGET
from quire_kernels.cpu.team import available_cores
from quire_kernels.linear.cases import random_weight
from quire_kernels.linear.packing import pack
from quire_kernels.linear.steps import LinearSteps

if __name__ == "__main__":
    print(f"copy: {copy_gb_per_s():.1f} GB/s")
    for kind in ("f32", "bf16", "q8_0", "q4_1"):
        for outputs, inputs in ((3072, 576), (576, 1536)):
            weights = [pack([random_weight(kind, outputs, inputs, seed)]) for seed in range(20)]
            for rows in (1, 8, 32, 128, 512):
                x = zeros((rows + TARGET.max_tile_rows, inputs), np.float32)
                out = zeros((rows + TARGET.max_tile_rows, outputs), np.float32)
                for use_amx in {False, has_amx() and kind in ("q8_0", "q4_1")}:
                    products = LinearSteps(rows, inputs, available_cores(), use_amx=use_amx)
                    count = np.array([rows])
                    steps = [step for weight in weights for step in products.bind(weight, x, out, count)]
                    report(
                        "linear", f"{kind} {rows}x{outputs}x{inputs} {'tiles' if use_amx else 'vectors'}",
                        program_seconds(steps) * len(steps) / len(weights),
                        num_bytes=weights[0].data.nbytes, num_flops=2 * rows * outputs * inputs,
                    )  # fmt: skip
