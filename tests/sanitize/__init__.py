"""The native part built by several compilers and sanitizers: `python -m tests.sanitize`."""
