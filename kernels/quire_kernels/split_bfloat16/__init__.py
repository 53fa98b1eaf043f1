"""float32 rows as exact sums of three bfloat16 parts, laid out for matrix tiles, with the sums of their blocks."""
