"""The queue, all KV-block metadata and the step plan; imports no torch and sees no text."""
