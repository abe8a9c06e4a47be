"""Graphs without gradients: what is computed once of weights that stay the same, and kept as kernels want it."""
