"""Seeded inputs for tests and benchmarks of skinny_linear."""

from __future__ import annotations

from quire_kernels.gemv.cases import ProductCase

CASES = [
    ProductCase(64, 128, rows=1),
    ProductCase(70, 300, rows=3, bias=True),
    ProductCase(130, 576, rows=16, residual=True),
    ProductCase(33, 3000, rows=17, gated=True),
    ProductCase(64, 2048, rows=64, residual=True, bias=True),
    ProductCase(200, 4096, rows=32, gated=True),
]
