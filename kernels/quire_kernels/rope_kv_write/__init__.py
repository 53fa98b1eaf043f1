"""Rotary embedding of queries and keys (with an optional norm per head), and the write into the block pool."""
