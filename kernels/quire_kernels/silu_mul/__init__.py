"""silu(gate) * up."""
