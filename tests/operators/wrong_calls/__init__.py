"""Samples with one random change: what the CPU refuses is refused on xla, and the other way round."""
