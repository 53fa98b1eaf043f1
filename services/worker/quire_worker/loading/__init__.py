"""From a model's files to its configuration and the rows of its weights. Knows no layers and no kernels' layout."""
