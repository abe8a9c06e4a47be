"""The package installed beside other versions of torch, jax and Python, and a part of its tests: `make versions`."""
