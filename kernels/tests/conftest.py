"""Kernels compile into the cache that services use; it must be named before numba is imported."""

from quire_kernels.cpu.environment import prepare_process

prepare_process()
