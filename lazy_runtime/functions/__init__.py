"""Functions that are recorded as one call: loops that stay in the program, and functions of jax."""
