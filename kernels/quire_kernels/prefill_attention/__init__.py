"""Causal attention of ragged runs of new tokens over keys and values in blocks."""
