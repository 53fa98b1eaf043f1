"""The public API: turns client requests into scheduler and tokenizer streams; never touches tensors or KV blocks."""

__version__ = "0.1.0"
