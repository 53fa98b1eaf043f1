"""Residual addition and RMS norm in one pass."""
