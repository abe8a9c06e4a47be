"""Runs what is pending, binds the results, and carries data between the host and devices."""
