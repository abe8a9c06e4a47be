"""A GPU in ten minutes: `python -m benchmarks.gpu` measures one NVIDIA GPU within a number of minutes."""
