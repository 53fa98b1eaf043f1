"""The operations a decoder is written in, and the two ways to run them: at once in torch, or as a CPU program."""
