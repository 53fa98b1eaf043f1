"""Conversations in domain words: calls, and the events of their answers. Every chat dialect stands on it."""
