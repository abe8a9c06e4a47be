"""`python -m lazy_runtime.kernels [KIND ...]` prints the tables of kernels, for the first xla device."""

from __future__ import annotations

import sys

from .debug import kernel_tables
from .platform import xla_devices


def main(kinds: list[str]) -> int:
    """Prints the tables.

    Args:
        kinds: of operators; empty for all.

    Returns:
        The exit status.
    """
    try:
        print(kernel_tables.text(xla_devices.get().platform, kinds))
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
