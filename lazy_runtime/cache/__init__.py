"""Compiled programs on disk, which later processes find."""
