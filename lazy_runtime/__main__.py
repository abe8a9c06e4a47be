"""`python -m lazy_runtime` (`command_line.py`)."""

import sys

from .command_line import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
