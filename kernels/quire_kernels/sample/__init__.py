"""Which token each row gets: greedy, or drawn from the filtered distribution with counter-based random numbers."""
