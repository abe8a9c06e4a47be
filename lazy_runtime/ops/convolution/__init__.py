"""Convolutions and their gradients, and the kernels that compute them."""
