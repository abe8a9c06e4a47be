"""Modules of torch as pure functions of jax arrays, `lazy_runtime.jax.function`."""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Iterator, Mapping
from typing import Any

import jax.numpy as jnp
import torch

from ..compat.jax_import import jax
from ..compat.tracing import compiling_flag
from ..execution import shared_buffers
from ..functions.symbolic import SymbolicSizes, generalized
from ..functions.traced import TracedFunction
from ..ir import dtypes, lowering_context
from ..ir.spec import TensorSpec
from ..platform import xla_devices
from ..tensor.xla_tensor import unwrap
from . import nested, results
from .arrays import asarray

Arrays = dict[str, jax.Array]

_EXPLICIT = jax.sharding.AxisType.Explicit


def function(module: torch.nn.Module) -> tuple[Arrays, ModuleFunction]:
    """A module as a pure function of its parameters and arguments, for jax to transform: `jit`, `grad`, `vmap`, `jvp`,
    `shard_map`, `lax.scan`, `jax.export`.

    The module itself is not changed, and its mode counts where the function is traced: `module.eval()` comes first.

    Args:
        module: on any device; written for tensors on a device of their own, as one is that runs on `xla`.

    Returns:
        its parameters by their names, as `named_parameters()` has them, and `f(params, *args, **kwargs)`; see
        `ModuleFunction`.
    """
    params = {name: _canonical(asarray(parameter)) for name, parameter in module.named_parameters()}
    return params, ModuleFunction(module)


class ModuleFunction:
    """What a module computes, as a function of jax arrays.

    Attributes:
        state: the module's buffers by their names, as they were when this was made.
    """

    def __init__(self, module: torch.nn.Module):
        self._module = module
        self._traces: dict[Hashable, _Trace] = {}
        self.state: Arrays = {name: _canonical(asarray(buffer)) for name, buffer in module.named_buffers()}
        self.__name__ = type(module).__name__

    def __call__(
        self,
        params: Mapping[str, Any],
        *args: Any,
        state: Mapping[str, Any] | None = None,
        key: Any = None,
        **kwargs: Any,
    ) -> Any:
        """Calls the module's `forward`; within jax's transformations, or outside of them, operator by operator.

        Args:
            params: an array for each parameter.
            args, kwargs: nests of arrays, and of other hashable values, which are constants. Where jax keeps no 64-bit
                types, its int32 arrays arrive as int64, which torch's indices and labels are.
            state: an array for each buffer; by default `self.state`.
            key: of `jax.random`, for what the module draws.

        Returns:
            what the module returns, with arrays in place of tensors and dicts in place of transformers' outputs. Where
            `state` is given, a pair of it and the new state.

        Raises:
            ValueError: an array of a parameter or buffer is missing, or one is there that the module does not have; the
                module writes to buffers and no state is given; it draws random numbers and no key is given.
            TypeError: an argument can be no constant, or the module returns what jax has no array for.
            NotImplementedError: a symbolic size (`jax.export.symbolic_shape`) is no symbol by itself, or what is
                computed depends on it in a way that is no polynomial; an array is over explicit axes of a mesh.
        """
        names = self._checked(params, dict(self._module.named_parameters()), "params")
        buffers = self._checked(self.state if state is None else state, self.state, "state")
        given, structure = jax.tree.flatten((args, kwargs))
        places = [place for place, each in enumerate(given) if nested.is_array(each)]
        kept = dict(self._module.named_buffers())
        operands = [
            *map(jnp.asarray, names.values()),
            *(_widened(each, kept[name].dtype) for name, each in buffers.items()),
            *(_widened(given[place], torch.int64) for place in places),
        ]
        constants = [None if nested.is_array(each) else each for each in given]
        known = nested.constants(self.__name__, (args, kwargs), given)
        _refuse_explicit_axes(self.__name__, operands)
        looks = tuple((_sizes(self.__name__, each), dtypes.to_torch(each.dtype)) for each in operands)
        modes = tuple(each.training for each in self._module.modules())
        trace = self._trace((structure, known, tuple(places), looks, modes), constants, tuple(names), tuple(buffers))
        if trace.written and state is None:
            raise ValueError(
                f"{self.__name__} writes to its buffers {', '.join(trace.written)}: call it with state=f.state, and it "
                "returns the new state too; or have module.eval() first"
            )
        found = trace(operands, key)
        result, new = jax.tree.unflatten(trace.structure, found)
        return result if state is None else (result, new)

    def _checked(self, given: Mapping[str, Any], wanted: Mapping[str, Any], what: str) -> dict[str, Any]:
        missing, surplus = wanted.keys() - given.keys(), given.keys() - wanted.keys()
        if missing or surplus:
            lacks = f"lacks {', '.join(sorted(missing))}" if missing else f"has no use for {', '.join(sorted(surplus))}"
            raise ValueError(f"{what} of {self.__name__} {lacks}")
        return {name: given[name] for name in wanted}

    def _trace(
        self, key: tuple[Any, ...], constants: list[Any], params: tuple[str, ...], buffers: tuple[str, ...]
    ) -> _Trace:
        found = self._traces.get(key)
        if found is None:
            structure, _, places, looks, _ = key
            found = self._traces[key] = _Trace(self._module, looks, structure, places, constants, params, buffers)
        return found


class _Trace:
    """A module's `forward` for arguments of one look.

    Attributes:
        structure: of what it gives: the module's results, and a dict of its buffers afterwards.
        written: names of the buffers that it writes to.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        looks: tuple[tuple[tuple[Any, ...], torch.dtype], ...],
        structure: Any,
        places: tuple[int, ...],
        constants: list[Any],
        params: tuple[str, ...],
        buffers: tuple[str, ...],
    ):
        self.name = type(module).__name__
        self.structure: Any = None
        self.written: list[str] = []
        device = xla_devices.get(0)

        def forward(*given: torch.Tensor) -> list[torch.Tensor]:
            named = dict(zip(params, given, strict=False))
            # written to, a copy is another tensor
            kept = {name: each.clone() for name, each in zip(buffers, given[len(params) :], strict=False)}
            before = {name: unwrap(each).handle for name, each in kept.items()}
            filled = list(constants)
            for place, each in zip(places, given[len(params) + len(buffers) :], strict=True):
                filled[place] = each
            args, kwargs = jax.tree.unflatten(structure, filled)
            with torch.no_grad(), _compiling():
                result = torch.func.functional_call(module, {**named, **kept}, args, kwargs)
            self.written = [name for name, each in kept.items() if unwrap(each).handle is not before[name]]
            leaves, self.structure = jax.tree.flatten((results.plain(self.name, result, device.torch_device), kept))
            return leaves

        def trace(sizes: Mapping[str, int]) -> TracedFunction:
            fixed = [(tuple(sizes.get(str(size), size) for size in shape), dtype) for shape, dtype in looks]
            specs = [TensorSpec.of(device, dtype, shape) for shape, dtype in fixed]
            return TracedFunction(forward, specs, device, self.name)

        symbols = {str(size): size for shape, _ in looks for size in shape if not isinstance(size, int)}
        with jax.ensure_compile_time_eval():  # nothing of this belongs into the trace of jax's around it
            self._traced = trace({}) if not symbols else generalized(self.name, SymbolicSizes(symbols), trace)
            self._captured = [shared_buffers.array_of(each) for each in self._traced.captured]

    def __call__(self, operands: list[Any], key: Any) -> list[Any]:
        ints = self._traced.graph.ints
        if ints and key is None:
            raise ValueError(
                f"{self.name} draws random numbers, as dropout does in training: call it with key=jax.random.key(0), "
                "and another key each time; or have module.eval() first"
            )
        words = jax.random.bits(key, (ints, 2), jnp.uint32) if ints else jnp.zeros((0, 2), jnp.uint32)
        with dtypes.x64(), lowering_context.changed(is_sharded=True):  # XLA's operators, not calls of torch's kernels
            high, low = words.astype(jnp.int64).T
            found, _ = self._traced(operands, self._captured, list(high << 32 | low))
        return [_canonical(each) for each in found]


@contextlib.contextmanager
def _compiling() -> Iterator[None]:
    """Has `torch.compiler.is_compiling()` say so: modules that read values of masks do without them then."""
    before = compiling_flag.get()
    compiling_flag.set(True)
    try:
        yield
    finally:
        compiling_flag.set(before)


def _refuse_explicit_axes(name: str, operands: list[jax.Array]) -> None:
    for array in operands:
        mesh = jax.typeof(array).sharding.mesh
        explicit = [axis for axis, kind in zip(mesh.axis_names, mesh.axis_types, strict=True) if kind == _EXPLICIT]
        if explicit:
            raise NotImplementedError(
                f"{name} gets an array over the explicit axes {', '.join(explicit)} of a mesh, whose rules its "
                "operators do not follow: have jax find the shards, by "
                "jax.make_mesh(..., axis_types=(jax.sharding.AxisType.Auto,))"
            )


def _sizes(name: str, array: jax.Array) -> tuple[Any, ...]:
    for size in array.shape:
        if not isinstance(size, int) and not str(size).isidentifier():
            raise NotImplementedError(f"{name} gets an array of {array.shape}: let {size} be a symbol of its own")
    return array.shape


def _canonical(array: jax.Array) -> jax.Array:
    """The array with 32 bits in place of 64 where jax is not told to keep them (`jax_enable_x64`)."""
    dtype = jax.dtypes.canonicalize_dtype(array.dtype)
    return array if dtype == array.dtype else array.astype(dtype)


def _widened(array: Any, dtype: torch.dtype) -> jax.Array:
    """What `_canonical` has made of an array of this dtype, as it was before; other arrays as they are. So indices and
    labels are of torch's int64 where jax has no such type.
    """
    array = jnp.asarray(array)
    with dtypes.x64():
        wide = dtypes.to_numpy(dtype)
    if jax.dtypes.canonicalize_dtype(wide) != array.dtype:
        return array
    with dtypes.x64():
        return array.astype(wide)
