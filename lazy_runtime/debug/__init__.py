"""What the runtime did and why: metrics, compiles and their reasons, unplanned syncs, graphs as text, profiles.

Importing it imports neither jax nor the device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..common.on_demand import submodules

if TYPE_CHECKING:
    from ..cache.disk_cache import Lookup
    from .compiling import Compilation
    from .kernel_choices import KernelChoice
    from .recompile_reasons import Recompilation
    from .unplanned_syncs import Wait

__all__ = ["cache_lookups", "compilations", "kernels", "recompiles", "syncs"]

__getattr__ = submodules(__name__, "graph_saver", "metrics", "metrics_saver", "profiler")


def recompiles() -> list[Recompilation]:
    """Why programs were compiled again: every compile of this process after the first of its region, oldest first.

    A region is a line of the program that executes what is pending (a sync, a read), or a function that torch.compile
    has given to `backend="openxla"`.
    """
    from . import compiling

    return compiling.recompiles()


def syncs() -> list[Wait]:
    """The lines that made the host wait for the device without a sync (`.item()`, `print`, `if tensor:`), the costliest
    first.
    """
    from . import unplanned_syncs

    return unplanned_syncs.waits()


def compilations() -> list[Compilation]:
    """Every compile of this process, oldest first, with what XLA's own analysis says of the program: floating-point
    operations, bytes accessed, memory.
    """
    from . import compiling

    return compiling.compilations()


def cache_lookups() -> list[Lookup]:
    """The latest programs that were looked for on disk, oldest first: found or not, and why."""
    from ..cache import disk_cache

    return disk_cache.lookups()


def kernels() -> list[KernelChoice]:
    """Which kernel computes each convolution, product, attention and batch norm, and why those before it do not.

    Returns:
        First the choices for weights that inference keeps, then those of each program that this process compiled, both
        oldest first. A program that came from the disk was not lowered, and has none.
    """
    from . import compiling, kernel_choices

    programs = (choice for compilation in compiling.compilations() for choice in compilation.kernels)
    return [*kernel_choices.of_kept_weights(), *programs]
