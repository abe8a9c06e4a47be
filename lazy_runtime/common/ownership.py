"""Whether the xla device and the name `openxla` are another package's."""

from __future__ import annotations

import importlib.util
import os


def other_owner() -> str | None:
    """Why this package leaves everything to torch_xla; None where that is not installed (or is our stand-in for it)."""
    try:
        spec = importlib.util.find_spec("torch_xla")
    except ValueError:  # a module without a spec in sys.modules
        spec = None
    ours = os.path.dirname(os.path.dirname(__file__)) + os.sep
    if spec is None or spec.loader is None or type(spec.loader).__module__.startswith("lazy_runtime"):
        return None
    if spec.origin is None or spec.origin.startswith(ours):
        return None
    return (
        "torch_xla is installed beside openxla-torch and owns the xla device and backend='openxla': openxla-torch "
        "stays out of its way. To use openxla-torch, `pip uninstall torch_xla`"
    )
