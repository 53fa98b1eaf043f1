"""The CPU's kernel language: vector tiles, a thread team and programs of tasks. Knows no operation of a model."""
