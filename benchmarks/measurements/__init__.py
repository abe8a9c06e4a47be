"""Measurements of one thing each: first results, compile time, host time, memory."""
