"""Networks that once differed, each with what was wrong. What `python -m tests.fuzz networks` prints goes in here.

Each is the source of a program without the names that `HEADER` and `FOOTER` of the sketch give it.
"""

from __future__ import annotations

REGRESSIONS: dict[str, str] = {}
