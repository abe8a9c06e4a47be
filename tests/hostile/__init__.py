"""Interrupts, forks and a damaged cache."""
