"""Operators that draw random numbers, and gradients through distributions."""
