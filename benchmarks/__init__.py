"""Ten real models through eager, Inductor, the lazy xla device and `torch.compile(backend="openxla")`.

`python -m benchmarks --help` says what can be run.
"""
