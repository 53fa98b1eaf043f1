"""Load generators and their statistics, shared by the benchmark scripts. It measures servers and imports none."""
