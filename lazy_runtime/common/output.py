"""Where reports go: standard error or `PT_XLA_DEBUG_FILE`, at `PT_XLA_DEBUG_LEVEL`; and torch's logging.

`TORCH_LOGS="xla_recompiles,xla_syncs"` shows the one-line reports without any level; `xla_cache` and `xla_kernels` are
there only.
Before torch 2.13 `import torch` knows none of these names yet when it reads the variable, and raises.
"""

from __future__ import annotations

import functools
import logging
import sys

from ..compat.torch import torch_logging
from . import config, environment, notices

#: PyTorch/XLA's mark at the beginning of each line.
PREFIX = "pt-xla-profiler: "

_ARTIFACTS = {
    "xla_recompiles": "Why programs on xla devices and of backend='openxla' were compiled again.",
    "xla_syncs": "Lines that made the host wait for an xla device without a sync.",
    "xla_cache": "Compiled programs that were looked for on disk: found or not, and why.",
    "xla_kernels": "Which kernel computes a convolution, a product or the like, and why those before it do not.",
}


@functools.cache
def level() -> int:
    """`PT_XLA_DEBUG_LEVEL`, as it was at the first use of xla."""
    return config.debug_level()


def write(*lines: str) -> None:
    """Writes lines of a report, with the prefix."""
    text = "".join(f"{PREFIX}{line}\n" for line in lines)
    path = environment.value("PT_XLA_DEBUG_FILE")
    if path is None:
        sys.stderr.write(text)
    else:
        notices.append(path, text, "PT_XLA_DEBUG_FILE")


def say(artifact: str, line: str) -> None:
    """One line for people: to `TORCH_LOGS` if it asks for the artifact, and into the reports of level 1."""
    _logger(artifact).debug("%s", line)
    if level() >= 1:
        write(line)


def log(artifact: str, line: str) -> None:
    """One line for people, to `TORCH_LOGS` if it asks for the artifact."""
    _logger(artifact).debug("%s", line)


def is_logged(artifact: str) -> bool:
    """Whether `TORCH_LOGS` asks for it."""
    return _logger(artifact).isEnabledFor(logging.DEBUG)


@functools.cache
def _logger(artifact: str) -> logging.Logger:
    register()
    return torch_logging.getArtifactLogger(__name__, artifact)


def register() -> None:
    """Makes the names known to `TORCH_LOGS`; before torch reads it, so from `import torch` on. Idempotent."""
    if "xla" not in torch_logging.log_registry.log_alias_to_log_qnames:
        torch_logging.register_log("xla", __name__)  # what has the handlers that artifacts' records go to
    for name, description in _ARTIFACTS.items():
        if name not in torch_logging.log_registry.artifact_names:
            torch_logging.register_artifact(name, description, visible=True)
