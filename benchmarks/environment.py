"""What a result depends on besides the code: versions, flags, the machine. No host names, no paths."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import subprocess
from pathlib import Path
from typing import Any

import torch

PACKAGES = (
    "openxla-torch",
    "torch",
    "jax",
    "jaxlib",
    "torchvision",
    "timm",
    "transformers",
    "numpy",
    "openvino",
    "torch_xla",
)
FLAGS = re.compile(r"(XLA|PJRT|CPU_NUM|JAX|TORCH|PYTORCH|OMP|MKL|KMP|GOMP|DNNL|ONEDNN|ATEN|MALLOC|LD_PRELOAD|GLIBC)")
_PATH = re.compile(r"(?<![\w.~/])(?!//)(~|\.{1,2})?(/[\w.+@%~-]+)+/?")


def collect() -> dict[str, Any]:
    """Versions, flags and machine, as they go into a result file."""
    return {
        "versions": versions(),
        "commit": _commit(),
        "flags": {name: without_paths(value) for name, value in sorted(os.environ.items()) if FLAGS.match(name)},
        "machine": {
            "system": f"{platform.system()} {platform.machine()}",
            "cpu": _cpu_model(),
            "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
            "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
            **({"gpu": torch.cuda.get_device_name()} if torch.cuda.is_available() else {}),
        },
    }


def versions() -> dict[str, str | None]:
    """Python's version and the packages', None for those that are not installed."""
    return {"python": platform.python_version()} | {name: _version(name) for name in PACKAGES}


def without_paths(text: str) -> str:
    """The text with file paths cut to their last part, which says what a file is but not where."""
    return _PATH.sub(lambda match: match[0].rstrip("/").rpartition("/")[2], text)


def one_line(error: BaseException) -> str:
    """An exception as one line for a table: its type and the first line of its message that says something."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    count = 2 if lines and lines[0].endswith(":") else 1  # Dynamo: "backend='x' raised:", and what on the next line
    return without_paths(": ".join([type(error).__name__, " ".join(lines[:count])]).rstrip(": "))


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _commit() -> str | None:
    """The checkout's commit, with `+` if files differ from it; None outside of one."""
    here = Path(__file__).resolve().parent

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=here, capture_output=True, text=True, check=True).stdout.strip()

    try:
        return git("rev-parse", "--short=12", "HEAD") + ("+" if git("status", "--porcelain") else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def _cpu_model() -> str:
    """The processor's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    fields = dict(re.split(r"\s*:\s*", line, maxsplit=1) for line in lines if ":" in line)
    name = fields.get("model name", platform.processor())
    if "cpu family" in fields:  # hypervisors shorten the name: family and model tell the generation
        name += f" (family {fields['cpu family']}, model {fields.get('model', '?')})"
    return name
