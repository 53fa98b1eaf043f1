"""rope_kv_write: bytes of queries, keys and values per second."""

import numpy as np
from timing import program_seconds, report

from quire_kernels.rope_kv_write import cpu
from quire_kernels.rope_kv_write.cases import RopeCase

if __name__ == "__main__":
    for tokens in (1, 32, 512):
        inputs = RopeCase(tokens, num_blocks=40).inputs()
        arrays = [inputs[name].numpy() for name in ("qkv", "positions", "slot_mapping", "cos", "sin", "pool")]
        step = cpu.bind(*arrays, np.array([tokens]), num_heads=9)
        report("rope_kv_write", f"{tokens} tokens", program_seconds([step]), num_bytes=arrays[0].nbytes)
