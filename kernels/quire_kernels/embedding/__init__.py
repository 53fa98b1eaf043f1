"""Rows of an embedding table, read from the packed matrix that the output projection may share."""
