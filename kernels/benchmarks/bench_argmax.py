"""argmax: bytes of logits per second."""

import numpy as np
from timing import program_seconds, report

from quire_kernels.argmax import cpu

if __name__ == "__main__":
    for rows in (1, 8, 32):
        x = np.random.default_rng(0).standard_normal((rows, 49152)).astype(np.float32)
        step = cpu.bind(x, 49152, np.zeros(rows, dtype=np.int32), np.array([rows]))
        report("argmax", f"{rows}x49152", program_seconds([step]), num_bytes=x.nbytes)
