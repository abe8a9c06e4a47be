"""Operators of neural networks, and the kernels that compute them."""
