"""How models mark what they think: one file per way."""
