"""split_bfloat16: bytes read and written per second."""

import numpy as np
from timing import program_seconds, report

from quire_kernels.split_bfloat16 import cpu

if __name__ == "__main__":
    for rows in (1, 32, 512):
        x = np.ones((rows, 576), dtype=np.float32)
        step = cpu.bind(x, 576, np.array([rows]), cpu.room(rows, 576))
        report("split_bfloat16", f"{rows}x576", program_seconds([step]), num_bytes=x.nbytes + 6 * x.size)
