"""PyTorch/XLA's `xla_builder` (`xb`): programs written operation by operation, and jax functions, on xla tensors."""

from ....compat import jax_import as jax_import  # before any module in here imports jax
from .callables import (
    _JAX_TO_XLA_COMPUTATION_CACHE,
    CompiledCallableWithCache,
    FlattenedInputFunc,
    JaxCallable,
    JaxFlattenedInputFunc,
    XlaCallable,
    _jax_to_xla_computation_cache_elements,
    call_jax,
)
from .computations import (
    computation_from_module_proto,
    from_stablehlo,
    get_computation_hlo,
    user_computation,
    xla_computation_as_func,
)
from .op import Op, create_builder, create_computation, mkleaf, mkop, mkparam
from .placeholders import create_placeholder_tensor
from .shapes import _PT_XLA_TYPE_MAP, _XLA_PT_TYPE_MAP, Shape, Type, mkshape, tensor_shape

__all__ = [
    "_JAX_TO_XLA_COMPUTATION_CACHE",
    "_PT_XLA_TYPE_MAP",
    "_XLA_PT_TYPE_MAP",
    "CompiledCallableWithCache",
    "FlattenedInputFunc",
    "JaxCallable",
    "JaxFlattenedInputFunc",
    "Op",
    "Shape",
    "Type",
    "XlaCallable",
    "_jax_to_xla_computation_cache_elements",
    "call_jax",
    "computation_from_module_proto",
    "create_builder",
    "create_computation",
    "create_placeholder_tensor",
    "from_stablehlo",
    "get_computation_hlo",
    "mkleaf",
    "mkop",
    "mkparam",
    "mkshape",
    "tensor_shape",
    "user_computation",
    "xla_computation_as_func",
]
