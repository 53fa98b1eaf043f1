"""The index of the largest value of each row: greedy sampling."""
