"""Which rows there are: database × entry × direction × dtype × road."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Iterable, Iterator
from typing import Any

import torch

DTYPES = ("float32", "float64", "int64", "int32", "uint8", "bool", "bfloat16", "float16", "complex64")
#: the dtypes of `limits`
INTEGERS = ("int8", "int16", "int32", "int64", "uint8")
#: `out` is `out=` of the right sizes and of none, `strided_out` one that is in another order of memory.
DIRECTIONS = ("forward", "backward", "inplace", "out", "strided_out", "errors", "wrong", "limits", "layouts")
ROADS = ("lazy", "eager", "compile", "host")
#: `lazy_runtime.jax.function`, for operators in float32
FUNCTION = "function"

#: In-place and `out=` forms never reach this package (torch functionalizes them away before), and Dynamo words errors
#: in its own way, so these are checked on one road or two. `host` is `compile` on plain CPU tensors.
ROADS_OF = {
    "forward": ROADS,
    "backward": ROADS,
    "inplace": ("lazy",),
    "out": ("lazy",),
    "strided_out": ("lazy",),
    "errors": ("lazy", "eager"),
    "wrong": ("lazy",),
    "limits": ("lazy",),
    "layouts": ("lazy",),
}

#: rows whose samples are of no one dtype
ANY_DTYPE = "any"


@dataclasses.dataclass(frozen=True)
class Row:
    """One thing that passes or fails."""

    database: str
    entry: str
    direction: str
    dtype: str
    road: str

    def __str__(self) -> str:
        return "/".join(dataclasses.astuple(self))

    @property
    def torch_dtype(self) -> torch.dtype:
        return getattr(torch, "float32" if self.dtype == ANY_DTYPE else self.dtype)


@functools.cache
def databases() -> dict[str, dict[str, Any]]:
    """Database → name of the entry, with its variant → OpInfo, ModuleInfo or OptimizerInfo."""
    import torch.testing._internal.common_methods_invocations as ops
    from torch.testing._internal.common_modules import module_db
    from torch.testing._internal.common_optimizers import optim_db

    foreach = [
        *ops.foreach_unary_op_db,
        *ops.foreach_binary_op_db,
        *ops.foreach_pointwise_op_db,
        *ops.foreach_reduce_op_db,
        *ops.foreach_other_op_db,
    ]
    return {
        "op_db": {entry.formatted_name: entry for entry in ops.op_db},
        "foreach": {entry.formatted_name: entry for entry in foreach},
        "module_db": {entry.formatted_name: entry for entry in module_db},
        "optim_db": {entry.name: entry for entry in optim_db},
    }


def entry_of(row: Row) -> Any:
    """The database's entry that a row is about."""
    return databases()[row.database][row.entry]


@dataclasses.dataclass(frozen=True)
class Filter:
    """What is wanted of the rows; empty for all.

    Args:
        only: regular expressions, each over the whole name of an entry; `linalg.svd` is `linalg_svd` there.
    """

    only: tuple[str, ...] = ()
    database: tuple[str, ...] = ()
    direction: tuple[str, ...] = ()
    dtype: tuple[str, ...] = ()
    road: tuple[str, ...] = ()

    def takes(self, row: Row) -> bool:
        return (
            (not self.database or row.database in self.database)
            and (not self.direction or row.direction in self.direction)
            and (not self.dtype or row.dtype in (*self.dtype, ANY_DTYPE))
            and (not self.road or row.road in self.road)
            and self.takes_entry(row.entry)
        )

    def takes_entry(self, entry: str) -> bool:
        return not self.only or any(re.fullmatch(pattern, entry) for pattern in self.only)


def all_rows() -> Iterator[Row]:
    """Every row, in the databases' order."""
    for database, entries in databases().items():
        for name, entry in entries.items():
            for direction in DIRECTIONS:
                for dtype in _dtypes(database, entry, direction):
                    for road in _roads(database, direction, dtype):
                        yield Row(database, name, direction, dtype, road)


def _roads(database: str, direction: str, dtype: str) -> tuple[str, ...]:
    has_function = database == "op_db" and direction in ("forward", "backward") and dtype == "float32"
    return (*ROADS_OF[direction], FUNCTION) if has_function else ROADS_OF[direction]


def select(wanted: Filter) -> list[Row]:
    """The rows that a filter takes."""
    return [row for row in all_rows() if wanted.takes(row)]


def _dtypes(database: str, entry: Any, direction: str) -> Iterable[str]:
    if direction == "errors":
        return (ANY_DTYPE,) if _has_errors(database, entry) else ()
    if direction == "wrong":
        return (ANY_DTYPE,) if database == "op_db" else ()
    if direction == "limits":
        return _integers(entry) if database == "op_db" else ()
    if direction == "layouts":
        have = entry.supported_dtypes("cpu") if database == "op_db" else ()
        return _names(have)[:1]
    if database == "optim_db":
        return ("float32", "float64") if direction == "forward" else ()
    if database == "module_db":
        if direction not in ("forward", "backward"):
            return ()
        return _names(entry.supported_dtypes("cpu"))
    if direction == "backward":
        return _names(entry.supported_backward_dtypes("cpu")) if entry.supports_autograd else ()
    if direction == "inplace" and entry.inplace_variant is None:
        return ()
    if direction in ("out", "strided_out") and (not entry.supports_out or database == "foreach"):
        return ()
    return _names(entry.supported_dtypes("cpu"))


def _integers(entry: Any) -> list[str]:
    have = entry.supported_dtypes("cpu")
    return [name for name in INTEGERS if getattr(torch, name) in have]


def _has_errors(database: str, entry: Any) -> bool:
    if database == "module_db":
        return entry.module_error_inputs_func is not None
    if database == "optim_db":
        return entry.optim_error_inputs_func is not None
    return entry.error_inputs_func is not None


def _names(dtypes: Iterable[torch.dtype]) -> list[str]:
    have = set(dtypes)
    return [name for name in DTYPES if getattr(torch, name) in have]
