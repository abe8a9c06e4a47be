"""What an exported model consists of, and how that is written down."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np

__all__ = [
    "InputLocation",
    "StableHLOExportOptions",
    "StableHLOFunc",
    "StableHLOFunctionMeta",
    "StableHLOJSONSerializer",
    "StableHLOModelBundle",
    "VariableSignature",
    "VariableType",
    "stablehlo_obj_hook",
]


@dataclass
class StableHLOExportOptions:
    """How a program is exported.

    Attributes:
        include_human_readable_text: keep the text beside the bytecode.
        override_tracing_arguments, override_tracing_kwargs: used in place of the program's example inputs.
        save_weights: write parameters and buffers to files (`StableHLOGraphModule.save`).
        inline_all_constant: accepted for PyTorch/XLA's sake: Python numbers are always constants of the program.
        export_weights: keep parameters and buffers in the bundle.
        custom_ops_allowed_in_graph: namespaces of operators that become custom calls of their names.
        export_node_metadata: not supported.
    """

    include_human_readable_text: bool = True
    override_tracing_arguments: tuple[Any, ...] | None = None
    override_tracing_kwargs: Mapping[str, Any] | None = None
    save_weights: bool = True
    inline_all_constant: bool = True
    export_weights: bool = True
    custom_ops_allowed_in_graph: set[str] = field(default_factory=set)
    export_node_metadata: bool = False


class VariableType(Enum):
    """Where an input of the program comes from: the caller, the state dict, or the constants of the export."""

    INPUT_ARG = "input_arg"
    PARAMETER = "parameter"
    CONSTANT = "constant"


@dataclass
class VariableSignature:
    """What a tensor looks like.

    Attributes:
        shape: its sizes.
        dtype: as torch calls it, `float32`.
        dynamic_dims: dimensions of any size; none here.
    """

    shape: list[int]
    dtype: str
    dynamic_dims: list[int] = field(default_factory=list)


@dataclass
class InputLocation:
    """Which value an input of the program is.

    Attributes:
        type_: where it comes from.
        position: its number among the arguments, or among the constants.
        name: of the parameter or buffer.
    """

    type_: VariableType
    position: int = -1
    name: str = ""

    @classmethod
    def parameter(cls, name: str) -> InputLocation:
        """A parameter or buffer of this name."""
        return cls(VariableType.PARAMETER, name=name)

    @classmethod
    def input_arg(cls, position: int) -> InputLocation:
        """An argument."""
        return cls(VariableType.INPUT_ARG, position=position)

    @classmethod
    def constant(cls, position: int) -> InputLocation:
        """A constant that the export found in the program."""
        return cls(VariableType.CONSTANT, position=position)


@dataclass
class StableHLOFunctionMeta:
    """What a function takes and gives.

    Attributes:
        name: of the function.
        stablehlo_version: of its bytecode.
        input_signature, output_signature: of its inputs and results, in order.
        input_locations: which value each input is.
        unused_inputs: arguments that it does not read.
        input_pytree_spec, output_pytree_spec: how arguments and results are nested, as torch writes it.
    """

    name: str
    stablehlo_version: str
    input_signature: list[VariableSignature]
    output_signature: list[VariableSignature]
    input_locations: list[InputLocation]
    unused_inputs: list[tuple[InputLocation, VariableSignature]]
    input_pytree_spec: str | None = None
    output_pytree_spec: str | None = None


@dataclass
class StableHLOFunc:
    """A function: what it takes and gives, its bytecode in StableHLO's portable form, and its text."""

    meta: StableHLOFunctionMeta
    bytecode: bytes
    text: str | None


@dataclass
class StableHLOModelBundle:
    """A model: its parameters and buffers by name, the constants of its programs, and its functions."""

    state_dict: dict[str, Any]
    additional_constants: list[np.ndarray]
    stablehlo_funcs: list[StableHLOFunc]


class StableHLOJSONSerializer(json.JSONEncoder):
    """Writes what this module has: `json.dumps(meta, cls=StableHLOJSONSerializer)`."""

    def default(self, obj: Any) -> Any:  # type: ignore[override]
        """A dataclass as its fields, and a `VariableType` as its value."""
        if isinstance(obj, VariableType):
            return obj.value
        if dataclasses.is_dataclass(obj) and not isinstance(obj, type):
            return {each.name: getattr(obj, each.name) for each in dataclasses.fields(obj)}
        return super().default(obj)


_KINDS: tuple[Any, ...] = (StableHLOFunctionMeta, StableHLOFunc, VariableSignature, InputLocation)


def stablehlo_obj_hook(dct: dict[str, Any]) -> Any:
    """Reads it again: `json.loads(text, object_hook=stablehlo_obj_hook)`. A dict that is none of these stays one."""
    for kind in _KINDS:
        if {each.name for each in dataclasses.fields(kind)} == dct.keys():
            values: dict[str, Any] = {
                name: VariableType(value) if name == "type_" else value for name, value in dct.items()
            }
            return kind(**values)
    return dct
