"""The version of this package, which setup.cfg reads, and that of PyTorch/XLA whose names it serves."""

__version__ = "0.1.0"

#: What `torch_xla.__version__` and `importlib.metadata.version("torch_xla")` say under the alias. The folder
#: `stand_in/torch_xla-<version>.dist-info` has it in its name and in its METADATA.
TORCH_XLA_VERSION = "2.9.0"
