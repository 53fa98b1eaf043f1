"""Kernels of the forward pass: per operation a public function, a kernel and a plain reference."""
