"""Requests whose answer is a vector, free of any dialect: embeddings, classes, and the scores made of them."""
