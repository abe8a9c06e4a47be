"""The one place of the version number; setup.cfg reads it."""

__version__ = "0.1.0"
