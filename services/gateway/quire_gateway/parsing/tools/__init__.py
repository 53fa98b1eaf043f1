"""How models write calls of tools: one file per way."""
