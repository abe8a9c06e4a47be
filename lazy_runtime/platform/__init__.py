"""The xla devices of this process and what stands behind them: jax's devices, memory, streams, random numbers."""
