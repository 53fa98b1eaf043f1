"""Compiles the CPU kernels into their cache ahead of the first start: `python -m quire_worker.warm`."""

from __future__ import annotations

import sys
import time

from quire_kernels.cpu.environment import has_compiler, kernel_cache_dir, prepare_process


def main() -> int:
    """Compile what is not in the cache yet; harmless to repeat."""
    if not has_compiler():
        print("numba is not installed: the worker will run on plain torch")
        return 0
    prepare_process()
    start = time.perf_counter()
    # Importing a kernel compiles it, or loads it from the cache.
    import quire_worker.layers.program  # noqa: F401

    print(f"CPU kernels ready in {time.perf_counter() - start:.1f} s, cache: {kernel_cache_dir()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
