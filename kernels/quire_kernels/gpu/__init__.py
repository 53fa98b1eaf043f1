"""What the Triton kernels share: launch options and small jitted functions. Imports no driver."""
