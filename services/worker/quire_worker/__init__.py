"""Weights, the block pool, the forward pass and sampling; executes the plan it is given and decides no policy."""
