"""A matrix times a few rows, with a residual or a gate after it."""
