"""Operators on each element by itself, or on pairs of them."""
