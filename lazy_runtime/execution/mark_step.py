"""The end of a training step: `lazy_runtime.sync`."""

from __future__ import annotations

import sys

from ..common import environment, metrics, source_locations
from ..debug import metrics_saver
from ..platform import xla_devices
from . import closures, execute, recorders


def mark_step(wait: bool = False, reset_scope: bool = True) -> None:
    """See `lazy_runtime.sync`."""
    if execute.before_cut is not None:
        execute.before_cut("lazy_runtime.sync() is called")
    if environment.value("XLA_EMIT_STEPLOG"):
        sys.stderr.write("lazy_runtime.sync\n")
    metrics.count("MarkStep")
    recorders.note_step()
    for found in xla_devices.of_this_thread():
        execute.sync(found, wait, ends_step=True)
    if reset_scope:
        source_locations.reset_scopes()
    metrics_saver.save_metrics()
    closures.run()
