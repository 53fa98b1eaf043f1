"""Conversations in domain words: what a chat is asked for, and the events of its answer. Every chat dialect stands on it."""
