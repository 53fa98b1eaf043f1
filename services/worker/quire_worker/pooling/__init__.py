"""Vectors of sequences: what is asked for, how a model's files say it is made, and the arithmetic. Knows no model."""
