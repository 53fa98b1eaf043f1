"""Encoders: models that read a whole text at once and answer vectors. No KV blocks, one step a text."""
