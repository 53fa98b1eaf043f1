"""skinny_linear in plain torch and float64."""

from __future__ import annotations

from quire_kernels.gemv.reference import gemv_reference as skinny_linear_reference

__all__ = ["skinny_linear_reference"]
