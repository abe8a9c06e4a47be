"""Prints `docs/versions.md`."""

from .versions_page import markdown

print(markdown(), end="")
