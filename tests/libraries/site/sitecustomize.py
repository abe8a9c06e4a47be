"""Lets a torchvision that was built for another torch be imported, in each process of the programs.

Its C++ library does not load there, and the import fails for want of two operators' schemas, which no program needs.
"""

import contextlib
import importlib.abc
import importlib.machinery
import sys
from pathlib import Path


class _BeforeTorchvision(importlib.abc.MetaPathFinder):
    """Finds nothing: it makes ready for the finders after it."""

    def find_spec(self, fullname, path=None, target=None):
        if fullname != "torchvision":
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(fullname)
        if spec is None or spec.origin is None:
            return None
        import torch

        with contextlib.suppress(OSError):
            for library in Path(spec.origin).parent.glob("_C*.so"):
                torch.ops.load_library(library)
        for name in ("nms", "qnms"):
            if not hasattr(torch.ops.torchvision, name):
                schemas.append(torch.library.Library("torchvision", "FRAGMENT"))
                schemas[-1].define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        return None


schemas = []  # definitions last as long as their library
sys.meta_path.insert(0, _BeforeTorchvision())
