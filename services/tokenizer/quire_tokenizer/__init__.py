"""Vocabularies, chat templates and incremental detokenisation; knows nothing of a request's life."""
