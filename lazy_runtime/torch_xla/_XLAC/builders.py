"""The builder of `core.xla_builder` by the names of the C++ module."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..core import xla_builder as xb
from ..core.xla_builder import expressions
from ..core.xla_builder.computations import computation_from_module_proto as _xla_op_computation_from_module_proto
from ..core.xla_builder.computations import get_computation_hlo as _xla_computation_text
from ..core.xla_builder.computations import user_computation as _xla_user_computation
from ..core.xla_builder.expressions import Builder as XlaBuilder
from ..core.xla_builder.expressions import Computation as XlaComputation
from ..core.xla_builder.expressions import Expression as XlaOp
from ..core.xla_builder.shapes import of_aval, to_aval

__all__ = [
    "XlaBuilder",
    "XlaComputation",
    "XlaOp",
    "_xla_computation_text",
    "_xla_op_build",
    "_xla_op_builder",
    "_xla_op_computation_from_module_proto",
    "_xla_op_create",
    "_xla_op_create_builder",
    "_xla_op_param",
    "_xla_op_shape",
    "_xla_op_tensor_shape",
    "_xla_user_computation",
]


def _xla_op_create_builder(name: str) -> XlaBuilder:
    """See `xla_builder.create_builder`."""
    return XlaBuilder(name)


def _xla_op_tensor_shape(tensor: torch.Tensor, device: str = "") -> Any:
    """The tensor's shape, as `xla_builder.Shape` takes it."""
    return xb.tensor_shape(tensor).shape


def _xla_op_param(builder: XlaBuilder, param_no: int, shape: Any) -> XlaOp:
    """See `xla_builder.mkparam`."""
    return expressions.parameter(builder, param_no, to_aval(shape))


def _xla_op_create(builder: XlaBuilder, opname: str, operands: Sequence[XlaOp], args: dict[str, Any]) -> XlaOp:
    """See `xla_builder.mkop`."""
    return expressions.create(builder, opname, operands, args)


def _xla_op_build(name: str, root: XlaOp) -> XlaComputation:
    """See `xla_builder.Op.build`."""
    return XlaComputation.of(name, root)


def _xla_op_shape(op: XlaOp) -> Any:
    """The shape of an operation's result, as `xla_builder.Shape` takes it."""
    return of_aval(op.aval)


def _xla_op_builder(op: XlaOp) -> XlaBuilder:
    """The builder of an operation."""
    return op.builder
