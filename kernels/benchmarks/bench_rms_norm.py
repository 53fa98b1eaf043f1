"""rms_norm: bytes read and written per second."""

import numpy as np
from timing import program_seconds, report

from quire_kernels.rms_norm import cpu

if __name__ == "__main__":
    for rows in (1, 32, 512):
        x, out = (np.ones((rows, 576), dtype=np.float32) for _ in range(2))
        step = cpu.bind(x, np.ones(576, dtype=np.float32), 1e-5, out, np.array([rows]))
        report("rms_norm", f"{rows}x576", program_seconds([step]), num_bytes=2 * x.nbytes)
