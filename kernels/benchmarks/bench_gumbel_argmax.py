"""gumbel_argmax: microseconds for a batch of draws over a vocabulary."""

import numpy as np
from timing import program_seconds, report

from quire_kernels.gumbel_argmax import cpu

if __name__ == "__main__":
    for rows in (1, 8, 32):
        logits = np.random.default_rng(0).standard_normal((rows, 49152)).astype(np.float32)
        keys = [np.arange(rows, dtype=np.int64) for _ in range(3)]
        step = cpu.bind(logits, 49152, *keys, np.zeros(rows, dtype=np.int32), np.array([rows]))
        report("gumbel_argmax", f"{rows}x49152", program_seconds([step]), num_bytes=logits.nbytes)
