"""Calls of a compiled program, on xla tensors and on plain ones."""
