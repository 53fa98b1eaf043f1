"""What can be wrong with a model's text files. What can be wrong with a request is servicekit's InvalidRequest."""

from __future__ import annotations


class ModelFormatError(ValueError):
    """A model's tokenizer files are missing, unreadable or of a kind that is not served; the message names which."""
