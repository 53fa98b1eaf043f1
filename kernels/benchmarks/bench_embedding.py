"""Embedding lookup: bytes written per second."""

import numpy as np
from timing import program_seconds, report

from quire_kernels.embedding import cpu
from quire_kernels.linear.cases import random_weight
from quire_kernels.linear.packing import pack

if __name__ == "__main__":
    for kind in ("f32", "q8_0"):
        table = pack([random_weight(kind, 49152, 576)])
        for rows in (1, 32, 512):
            ids = np.random.default_rng(0).integers(0, 49152, rows).astype(np.int32)
            out = np.zeros((rows, 576), dtype=np.float32)
            step = cpu.bind(table, ids, out, np.array([rows]))
            report("embedding", f"{kind} {rows}x576", program_seconds([step]), num_bytes=out.nbytes)
