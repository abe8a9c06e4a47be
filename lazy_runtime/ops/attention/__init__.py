"""Attention and its gradients, and the kernels that compute them."""
