"""`fused=True` of torch's optimizers: the update of all parameters of a group as one operator.

The formulas are those of torch's kernels (aten/src/ATen/native/cuda/fused_adam_utils.cuh, FusedSgdKernel.cu,
FusedAdagradKernel.cu): numbers of a step in float64, elements in float32 or wider. Gradients are divided by
`grad_scale` where it is given, and kept so; where `found_inf` is 1 nothing changes.

Each gives one flat list: the new parameters, the gradients if they were scaled, and each list of state but the step
counts, which the optimizers count themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import torch

from ..indexing.reduction import opmath
from ..registry import op, overload

Arrays = Sequence[jax.Array]


#: Arguments that torch's optimizers may leave on the CPU.
_NUMBERS = ("state_steps", "lr", "grad_scale", "found_inf")


def _stand_in(x: Any) -> Any:
    """A CPU tensor of one element, that torch's CPU kernels take or refuse as they would take or refuse `x`."""
    if isinstance(x, torch.Tensor):
        return torch.ones((), dtype=x.dtype, device="cpu")
    return [_stand_in(item) for item in x] if isinstance(x, list | tuple) else x


def _infer(name: str) -> Callable[..., list[torch.Tensor]]:
    stem, _, kind = name.partition(".")

    def infer(params: Any, grads: Any, *states: Any, **options: Any) -> list[torch.Tensor]:
        in_place: Any = overload(f"{stem}_.{kind or 'default'}")
        in_place(*map(_stand_in, (params, grads, *states)), **{key: _stand_in(x) for key, x in options.items()})
        lists = [params, *([] if options.get("grad_scale") is None else [grads]), *states[: _states(name)]]
        return [torch.empty_like(x) for each in lists for x in each]

    return infer


def _states(name: str) -> int:
    """How many lists of state, the step counts not among them, an operator has."""
    return 3 if "adam" in name else 1


def _fused(name: str) -> Callable[[Callable], Callable]:
    """Registers a function that updates one parameter: (parameter, gradient, states, step count or None, options) →
    parameter, states; the 16-bit ones among them in float32.
    """

    def register(update: Callable) -> Callable:
        def lowering(params: Arrays, grads: Arrays, *states: Arrays, grad_scale=None, found_inf=None, **options: Any):
            states, steps = states[: _states(name)], states[_states(name) :]
            found = jnp.array(False) if found_inf is None else found_inf.reshape(()) == 1
            columns: list[list[jax.Array]] = [[], [], *([] for each in states if each)]
            for number, (param, grad) in enumerate(zip(params, grads, strict=True)):
                before = [each[number] for each in states if each]
                gradient = opmath(grad)
                if grad_scale is not None:
                    gradient = gradient / grad_scale.reshape(()).astype(gradient.dtype)
                step = steps[0][number].astype(jnp.float64) if steps else None
                signed = -gradient if options["maximize"] else gradient
                after, *kept = update(opmath(param), signed, list(map(opmath, before)), step, options)
                old, new = [param, grad, *before], [after, gradient, *kept]
                for column, x, y in zip(columns, old, new, strict=True):
                    y = y.astype(x.dtype)
                    column.append(y if found_inf is None else jnp.where(found, x, y))
            if grad_scale is None:
                del columns[1]
            return [x for column in columns for x in column]

        for each in (name, f"{name}.tensor_lr"):
            op(each, dynamic_scalars=True, host_inputs=_NUMBERS, infer=_infer(each))(lowering)
        return update

    return register


def _is_zero(number: Any) -> bool:
    """Whether a number is known to be zero; one that is an input of the graph is not."""
    return isinstance(number, int | float) and number == 0


def _decayed(param: jax.Array, grad: jax.Array, weight_decay: Any) -> jax.Array:
    return grad if _is_zero(weight_decay) else grad + param * _like(weight_decay, param)


def _like(number: Any, x: jax.Array) -> jax.Array:
    return jnp.asarray(number, x.dtype).reshape(())


def _wide(number: Any) -> jax.Array:
    return jnp.asarray(number, jnp.float64).reshape(())


def _adam(param: jax.Array, grad: jax.Array, states: Arrays, step: jax.Array, options: dict[str, Any]) -> list[Any]:
    mean, square, *largest = states
    lr, beta1, beta2 = (_wide(options[name]) for name in ("lr", "beta1", "beta2"))
    mean = mean + _like(1 - beta1, mean) * (grad - mean)
    square = _like(beta2, square) * square + _like(1 - beta2, square) * grad * grad
    if options["amsgrad"]:
        largest = [jnp.maximum(largest[0], square)]
    step_size = lr / (1 - beta1**step)
    correction = jnp.sqrt(1 - beta2**step)
    seen = largest[0] if options["amsgrad"] else square
    denominator = jnp.sqrt(seen) / _like(correction, param) + _like(options["eps"], param)
    return [param - _like(step_size, param) * mean / denominator, mean, square, *largest]


@_fused("aten::_fused_adam")
def fused_adam(param, grad, states, step, options):
    return _adam(param, _decayed(param, grad, options["weight_decay"]), states, step, options)


@_fused("aten::_fused_adamw")
def fused_adamw(param, grad, states, step, options):
    if not _is_zero(options["weight_decay"]):
        param = param - _like(_wide(options["lr"]) * options["weight_decay"], param) * param
    return _adam(param, grad, states, step, options)


@_fused("aten::_fused_sgd")
def fused_sgd(param, grad, states, step, options):
    grad = _decayed(param, grad, options["weight_decay"])
    kept = []
    if states:
        momentum = _like(options["momentum"], param)
        kept = [grad]
        if not options["is_first_step"]:
            kept = [momentum * states[0] + _like(1 - _wide(options["dampening"]), param) * grad]
        grad = grad + momentum * kept[0] if options["nesterov"] else kept[0]
    return [param - _like(options["lr"], param) * grad, *kept]


@_fused("aten::_fused_adagrad")
def fused_adagrad(param, grad, states, step, options):
    grad = _decayed(param, grad, options["weight_decay"])
    total = states[0] + grad * grad
    rate = _wide(options["lr"]) / (1 + (step - 1) * options["lr_decay"])
    return [param - _like(rate, param) * grad / (jnp.sqrt(total) + _like(options["eps"], param)), total]
