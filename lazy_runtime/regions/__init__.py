"""`lazy_runtime.compile`: regions of a program that are one XLA program."""
