"""Attention backends of the eager forward pass, found by name; the CPU program has its own kernel."""
