"""Models as data: what a decoder looks like, which architectures become one, and the one decoder that runs them."""
