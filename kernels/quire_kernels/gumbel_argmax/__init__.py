"""Sampling by the Gumbel-max trick with counter-based random numbers."""
