"""Products of matrices and the kernels that compute them, factorizations, Fourier transforms."""
