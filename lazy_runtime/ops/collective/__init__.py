"""Operators between ranks and between devices."""
