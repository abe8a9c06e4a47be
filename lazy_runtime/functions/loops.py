"""Loops that stay in the program, of functions that are traced once: XLA's `While`, by way of jax."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import torch

from ..ir.graph import Call
from ..ir.spec import TensorSpec
from ..lowering.layout import logical
from ..platform.xla_devices import Device
from ..tensor.xla_tensor import XLATensor, unwrap
from . import calls
from .checked import first_failed, nothing_failed
from .traced import TracedFunction

# of SplitMix64 (`platform/rng.py`), as int64: each turn's seeds are others
_STEP = 0x9E3779B97F4A7C15 - (1 << 64)

Tensors = Sequence[torch.Tensor]


def scan(
    combine: Callable[..., tuple[Tensors, Tensors]], init: Tensors, xs: Tensors, reverse: bool = False
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Calls a function for each element of the first dimension, with what it gave for the one before.

    Args:
        combine: `(*carried, *elements)` to what is carried on, as many tensors of the same shapes and dtypes as `init`,
            and what the turn gives. It is traced once.
        init: what the first turn carries.
        xs: at least one tensor, all with the same first size.
        reverse: from the last element to the first.

    Returns:
        what is carried at the end, and what all turns have given, along a new first dimension.

    Raises:
        RuntimeError, TypeError: what is carried on looks otherwise than `init`, or `combine` writes to its arguments.
    """
    counts: list[int] = []

    def flat(*arguments: torch.Tensor) -> Sequence[torch.Tensor]:
        carried, made = combine(*arguments)
        counts.append(len(carried))
        return [*carried, *made]

    operands = [unwrap(x) for x in (*init, *xs)]
    device, carries = operands[0].spec.device, len(init)
    length = operands[carries].spec.shape[0]
    elements = [TensorSpec.of(x.spec.device, x.spec.dtype, x.spec.shape[1:]) for x in operands[carries:]]
    arguments = [*(_row_major(x.spec) for x in operands[:carries]), *elements]
    function = TracedFunction(flat, arguments, device, "the function of scan")
    _require_same("scan", arguments[:carries], function.specs[: counts[0]])
    stacked = [TensorSpec.of(spec.device, spec.dtype, (length, *spec.shape)) for spec in function.specs[carries:]]
    count = len(operands)

    def evaluate(arrays: Sequence[Any], floats: Any, seeds: Sequence[Any]) -> Sequence[Any]:
        arrays = logical(list(arrays))
        captured = arrays[count:]

        def turn(state: Any, elements: Any) -> Any:
            values, flag = function([*state[0], *elements], captured, _seeds(seeds, state[2]))
            return (values[:carries], first_failed(state[1], flag), state[2] + 1), values[carries:]

        start = list(arrays[:carries]), nothing_failed(), jnp.int64(0)
        (carried, flag, _), made = jax.lax.scan(turn, start, list(arrays[carries:count]), reverse=reverse)
        function.require(flag)
        return [*carried, *made]

    outputs = [*function.specs[:carries], *stacked]
    key = "scan", carries, length, reverse, tuple(x.spec for x in operands)
    made = _record("scan", key, device, [*operands, *function.captured], [function], outputs, evaluate)
    return made[:carries], made[carries:]


def while_loop(
    condition: Callable[..., torch.Tensor], body: Callable[..., Tensors], carried: Tensors
) -> list[torch.Tensor]:
    """Calls a function of what it gave before, for as long as a condition of that holds.

    Args:
        condition: `(*carried)` to a tensor of one element. It is traced once, as is `body`.
        body: `(*carried)` to as many tensors of the same shapes and dtypes.
        carried: at least one tensor.

    Returns:
        what is carried at the end.

    Raises:
        RuntimeError, TypeError: what is carried on looks otherwise than at the start, or one writes to its arguments.
        NotImplementedError: the condition may fail when it runs.
    """
    operands = [unwrap(x) for x in carried]
    device, count = operands[0].spec.device, len(operands)
    arguments = [_row_major(x.spec) for x in operands]
    goes_on = TracedFunction(lambda *x: [condition(*x)], arguments, device, "the condition of while_loop")
    turn_of = TracedFunction(body, arguments, device, "the body of while_loop")
    if goes_on.is_fallible:
        raise NotImplementedError("an operator that may fail is in the condition of while_loop: move it to the body")
    if goes_on.specs[0].numel != 1:
        raise RuntimeError(f"the condition of while_loop gives {goes_on.specs[0]}, where one element is taken")
    _require_same("while_loop", arguments, turn_of.specs)
    first = count + len(goes_on.captured)
    random = goes_on.graph.ints

    def evaluate(arrays: Sequence[Any], floats: Any, seeds: Sequence[Any]) -> Sequence[Any]:
        arrays = logical(list(arrays))

        def is_true(state: Any) -> Any:
            (found,), _ = goes_on(state[0], arrays[count:first], _seeds(seeds[:random], state[2]))
            return found.reshape(()).astype(bool)

        def turn(state: Any) -> Any:
            values, flag = turn_of(state[0], arrays[first:], _seeds(seeds[random:], state[2]))
            return values, first_failed(state[1], flag), state[2] + 1

        start = list(arrays[:count]), nothing_failed(), jnp.int64(0)
        values, flag, _ = jax.lax.while_loop(is_true, turn, start)
        turn_of.require(flag)
        return values

    key = "while_loop", tuple(x.spec for x in operands)
    everything = [*operands, *goes_on.captured, *turn_of.captured]
    return _record("while_loop", key, device, everything, [goes_on, turn_of], turn_of.specs, evaluate)


def _record(
    name: str,
    key: tuple[Any, ...],
    device: Device,
    operands: Sequence[XLATensor],
    functions: Sequence[TracedFunction],
    outputs: Sequence[TensorSpec],
    evaluate: Callable[..., Sequence[Any]],
) -> list[torch.Tensor]:
    def make_call() -> Call:
        return Call(
            f"higher_order::{name}",
            device,
            evaluate,
            tuple(operand.spec for operand in operands),
            tuple(outputs),
            container=list,
            ints=sum(function.graph.ints for function in functions),
            fallible=any(function.is_fallible for function in functions),
        )

    def digest() -> str:
        return repr((name, *map(str, key[1:]), *(function.digest() for function in functions)))

    call = calls.intern((*key, *(function.key for function in functions)), make_call, digest)
    for function in functions:
        function.captured = []  # the call outlives the tensors
    return calls.to_user(calls.record(call, operands))


def _row_major(spec: TensorSpec) -> TensorSpec:
    return TensorSpec.of(spec.device, spec.dtype, spec.shape)


def _require_same(name: str, expected: Sequence[TensorSpec], given: Sequence[TensorSpec]) -> None:
    looks = [[(spec.dtype, spec.shape) for spec in specs] for specs in (expected, given)]
    if looks[0] != looks[1]:
        raise RuntimeError(
            f"{name}: what is carried has to look the same in each turn. It begins as "
            f"{[f'{dtype} {list(shape)}' for dtype, shape in looks[0]]}, and a turn gives "
            f"{[f'{dtype} {list(shape)}' for dtype, shape in looks[1]]}"
        )


def _seeds(seeds: Sequence[Any], turn: Any) -> list[Any]:
    return [seed + turn * jnp.int64(_STEP) for seed in seeds]
