"""Libraries that people use with PyTorch/XLA, unmodified (`make test-libraries`)."""
