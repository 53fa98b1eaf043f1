"""Rows of activations as eight-bit floats with a scale each: after a norm, after a gate, or as they are."""
