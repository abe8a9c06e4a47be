"""Operators that move, find, order, fill or reduce elements."""
