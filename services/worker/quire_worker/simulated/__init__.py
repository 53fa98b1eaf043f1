"""A worker without a model: the real contract behind a latency model and deterministic tokens.

For load tests, capacity questions and as the checker of the step protocol. Imports no torch.
"""
