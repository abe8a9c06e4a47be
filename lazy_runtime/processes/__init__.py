"""Ranks: processes, or threads of one, that compute together."""
