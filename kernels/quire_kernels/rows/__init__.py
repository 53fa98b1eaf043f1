"""Rows of a matrix by index."""
