"""Attention of one new token per sequence over keys and values in blocks."""
