"""What models write, taken apart: reasoning, text and calls of tools, incrementally and for any chunking."""
