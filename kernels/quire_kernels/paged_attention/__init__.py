"""Causal attention of ragged query rows over keys and values that lie in blocks."""
