"""A matrix times one vector, with a norm before and a residual or a gate after it."""
