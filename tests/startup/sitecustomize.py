"""What Python does first in each process that tests start (`PYTHONPATH`): a sixth of their time was the collector's."""

import runpy
from pathlib import Path

runpy.run_path(str(Path(__file__).parents[1] / "garbage.py"))["collect_less"]()
