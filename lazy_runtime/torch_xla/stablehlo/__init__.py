"""`torch_xla.stablehlo`: exported programs as StableHLO, which is saved, loaded and run on xla."""

from ...compat import jax_import as jax_import  # before any module in here imports jax
from .bundle import (
    InputLocation,
    StableHLOExportOptions,
    StableHLOFunc,
    StableHLOFunctionMeta,
    StableHLOJSONSerializer,
    StableHLOModelBundle,
    VariableSignature,
    VariableType,
    stablehlo_obj_hook,
)
from .export import (
    XLAExportInterpreter,
    exported_program_to_stablehlo,
    save_as_stablehlo,
    save_torch_model_as_stablehlo,
)
from .graph_module import StableHLOGraphModule

__all__ = [
    "InputLocation",
    "StableHLOExportOptions",
    "StableHLOFunc",
    "StableHLOFunctionMeta",
    "StableHLOGraphModule",
    "StableHLOJSONSerializer",
    "StableHLOModelBundle",
    "VariableSignature",
    "VariableType",
    "XLAExportInterpreter",
    "exported_program_to_stablehlo",
    "save_as_stablehlo",
    "save_torch_model_as_stablehlo",
    "stablehlo_obj_hook",
]
