"""Which replica of a job this process, or thread, drives."""

from __future__ import annotations

from ..processes import process_job
from . import xla_devices


def place() -> process_job.Place:
    """The place of the calling thread's replica among all; under SPMD, where the devices of all processes are one
    replica, that of the only one.
    """
    return process_job.ALONE if xla_devices.is_spmd() else process_job.place()
