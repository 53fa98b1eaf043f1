"""y = x W^T on weights packed in tiles, compact ones expanded on the way."""
