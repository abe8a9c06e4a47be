"""The calls that a row stands for, the same on every device."""

from __future__ import annotations

import copy
import dataclasses
import random
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy
import torch
from torch.utils._pytree import tree_leaves, tree_map

from . import rows
from .arguments import arguments, differentiable, place

#: What a road does to the function under test: nothing, or `torch.compile`.
Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]


@dataclasses.dataclass(frozen=True)
class Case:
    """One call.

    Attributes:
        prepare: makes fresh arguments on a device and gives the call, which returns a tree of tensors.
        summary: the arguments in words.
    """

    prepare: Callable[[str], Callable[[Wrap], Any]]
    summary: str


def seed(row: rows.Row) -> int:
    """One seed per sample generator: the same on every road."""
    return zlib.crc32(f"{row.database}/{row.entry}/{row.direction}/{row.dtype}".encode())


def cases(row: rows.Row, limit: int) -> list[Case]:
    """The row's calls.

    Args:
        limit: at most so many, spread evenly over all that there are; 0 for all.
    """
    number = seed(row)
    torch.manual_seed(number)
    random.seed(number)
    numpy.random.seed(number % 2**32)
    return _spread(_MAKERS[row.database](row), limit)


def _spread(found: Sequence[Case], limit: int) -> list[Case]:
    """`limit` of them with the first and the last: later samples are often of another kind than the first."""
    if not limit or len(found) <= limit:
        return list(found)
    if limit == 1:
        return [found[0]]
    return [found[round(i * (len(found) - 1) / (limit - 1))] for i in range(limit)]


def _operator(row: rows.Row) -> list[Case]:
    entry, dtype = rows.entry_of(row), row.torch_dtype
    if row.direction == "errors":
        samples = [error.sample_input for error in entry.error_inputs("cpu")]
        return [_forward(entry, sample) for sample in samples]
    samples = list(entry.sample_inputs("cpu", dtype, requires_grad=row.direction == "backward"))
    if row.direction == "backward":
        return [_backward(entry, sample) for sample in samples]
    if row.direction == "inplace":
        return [_inplace(entry, sample) for sample in samples if not sample.broadcasts_input]
    if row.direction == "out":
        return [_out(entry, sample) for sample in samples]
    return [_forward(entry, sample) for sample in samples]


def _forward(entry: Any, sample: Any) -> Case:
    def prepare(device: str) -> Callable[[Wrap], Any]:
        args, kwargs = arguments(entry, sample, device)
        return lambda wrap: wrap(_call(entry.op))(*args, **kwargs)

    return Case(prepare, sample.summary())


def _call(op: Callable[..., Any]) -> Callable[..., Any]:
    """A function in Python around what may be a builtin, which Dynamo compiles differently."""
    return lambda *args, **kwargs: op(*args, **kwargs)


def _backward(entry: Any, sample: Any) -> Case:
    """The results, and their gradients for fixed cotangents, after what torch's own gradient tests do to the results
    whose gradients are not unique (`output_process_fn_grad`)."""

    def prepare(device: str) -> Callable[[Wrap], Any]:
        args, kwargs = arguments(entry, sample, device)

        def function(*args: Any, **kwargs: Any) -> Any:
            return sample.output_process_fn_grad(entry.op(*args, **kwargs))

        return lambda wrap: _gradients(wrap(function)(*args, **kwargs), differentiable((args, kwargs)))

    return Case(prepare, sample.summary())


def _gradients(outputs: Any, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
    found = [x for x in tree_leaves(outputs) if isinstance(x, torch.Tensor) and x.requires_grad]
    if not found or not inputs:
        return []
    generator = torch.Generator().manual_seed(0)
    cotangents = [
        torch.randn(x.shape, generator=generator, dtype=torch.complex128 if x.is_complex() else torch.float64).to(
            device=x.device, dtype=x.dtype
        )
        for x in found
    ]
    return list(torch.autograd.grad(found, inputs, cotangents, allow_unused=True))


def _inplace(entry: Any, sample: Any) -> Case:
    """The first argument after the call, what the call gave, and whether that is the argument itself."""

    def prepare(device: str) -> Callable[[Wrap], Any]:
        args, kwargs = arguments(entry, sample, device)

        def call(wrap: Wrap) -> Any:
            result = wrap(entry.inplace_variant)(*args, **kwargs)
            return args[0], result, result is args[0]

        return call

    return Case(prepare, sample.summary())


def _out(entry: Any, sample: Any) -> Case:
    """The call with `out=` of the right sizes, in another order of memory, and of no size."""

    def prepare(device: str) -> Callable[[Wrap], Any]:
        args, kwargs = arguments(entry, sample, "cpu")
        expected = entry.op(*args, **kwargs)
        args, kwargs = arguments(entry, sample, device)

        def call(wrap: Wrap) -> Any:
            results = []
            for make in (_same, _transposed, _no_elements):
                out = tree_map(lambda x: make(x).to(device) if isinstance(x, torch.Tensor) else x, expected)  # noqa: B023
                result = wrap(entry.op)(*args, **kwargs, out=out)
                itself = [x is y for x, y in zip(tree_leaves(result), tree_leaves(out), strict=True)]
                results.append((result, out, itself))
            return results

        return call

    return Case(prepare, sample.summary())


def _same(x: torch.Tensor) -> torch.Tensor:
    return torch.full_like(x, 1)


def _transposed(x: torch.Tensor) -> torch.Tensor:
    order = range(x.dim() - 1, -1, -1)
    return torch.ones([x.shape[dim] for dim in order], dtype=x.dtype).permute(*order) if x.dim() > 1 else _same(x)


def _no_elements(x: torch.Tensor) -> torch.Tensor:
    return torch.empty(0, dtype=x.dtype)


def _foreach(row: rows.Row) -> list[Case]:
    return _operator(row)


def _module(row: rows.Row) -> list[Case]:
    """Each constructor and each forward input, in training and in evaluation."""
    info, dtype = rows.entry_of(row), row.torch_dtype
    gradients = row.direction == "backward"
    if row.direction == "errors":
        errors = info.module_error_inputs_func(
            info, device="cpu", dtype=torch.float32, requires_grad=False, training=True
        )
        inputs = [(error.module_error_input, True) for error in errors]
        dtype = torch.float32
    else:
        inputs = [
            (each, training)
            for training in (True, False)
            for each in info.module_inputs_func(
                info, device="cpu", dtype=dtype, requires_grad=gradients, training=training
            )
            if each.forward_input is not None
        ]
    return [_module_case(info, dtype, each, training, gradients) for each, training in inputs]


def _module_case(info: Any, dtype: torch.dtype, inputs: Any, training: bool, gradients: bool) -> Case:
    def prepare(device: str) -> Callable[[Wrap], Any]:
        constructor, forward = inputs.constructor_input, inputs.forward_input

        def call(wrap: Wrap) -> Any:
            torch.manual_seed(0)  # for the parameters
            constructor_args, constructor_kwargs = place((constructor.args, constructor.kwargs), "cpu")
            module = info.module_cls(*constructor_args, **constructor_kwargs).to(dtype).train(training)
            args, kwargs = place((forward.args, forward.kwargs), device)
            if info.is_lazy:
                module(*place((forward.args, forward.kwargs), "cpu")[0])
            module = module.to(device)
            outputs = wrap(module)(*args, **kwargs)
            if not gradients:
                return outputs, dict(module.named_buffers())
            return _gradients(outputs, [*module.parameters(), *differentiable((args, kwargs))])

        return call

    return Case(prepare, f"{info.name}{constructor_text(inputs)} training={training} {inputs.desc}")


def constructor_text(inputs: Any) -> str:
    """How the module was made, in words."""
    made = inputs.constructor_input
    return f"({', '.join([*map(repr, made.args), *(f'{key}={value!r}' for key, value in made.kwargs.items())])})"


STEPS = 3


def _optimizer(row: rows.Row) -> list[Case]:
    """Each configuration that torch tests, one parameter after another and multi-tensor; `capturable` where torch lets
    xla have it, which is not with `foreach`, nor in Adadelta."""
    info = rows.entry_of(row)
    if row.direction == "errors":
        return [_optimizer_error(info, each) for each in info.optim_error_inputs_func("cpu", torch.float32)]
    configurations = info.optim_inputs_func("cuda")  # the CPU's, and those that need a device which keeps its steps
    made = [(each.kwargs, each.desc) for each in configurations if info.name != "Adadelta" or not _captures(each)]
    if "foreach" in info.supported_impls:
        made += [
            ({**each.kwargs, "foreach": True}, f"{each.desc}, foreach")
            for each in configurations
            if not _captures(each) and not isinstance(each.kwargs.get("lr"), torch.Tensor)
        ]
    return [_optimizer_case(info, row.torch_dtype, kwargs, desc) for kwargs, desc in made]


def _captures(inputs: Any) -> bool:
    return inputs.kwargs.get("capturable", False)


def _optimizer_case(info: Any, dtype: torch.dtype, configuration: dict[str, Any], desc: str) -> Case:
    def prepare(device: str) -> Callable[[Wrap], Any]:
        kwargs = place(configuration, device)
        if device == "cpu":  # torch refuses it there; it means the same
            kwargs.pop("capturable", None)
        generator = torch.Generator().manual_seed(0)

        def numbers(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=generator, dtype=torch.float64).to(device=device, dtype=dtype)

        shapes = ((4, 3), (3, 3)) if info.name == "Muon" else ((4, 3), (3,), ())
        parameters = [torch.nn.Parameter(numbers(*shape)) for shape in shapes]
        gradients = [[numbers(*shape) for shape in shapes] for _ in range(STEPS)]

        def call(wrap: Wrap) -> Any:
            optimizer = info.optim_cls(parameters, **copy.copy(kwargs))
            closure = (lambda: sum((p * p).sum() for p in parameters)) if info.step_requires_closure else None
            step = wrap(optimizer.step)
            for each in gradients:
                for parameter, gradient in zip(parameters, each, strict=True):
                    parameter.grad = gradient.to_sparse() if info.only_supports_sparse_grads else gradient
                step(closure) if closure else step()
            # only tensors: LBFGS counts its evaluations, which the last bits of the loss decide
            state = [
                {key: float(x) if key == "step" else x for key, x in optimizer.state[p].items() if _is_tensor(x)}
                for p in parameters
                if p in optimizer.state
            ]
            return [p.detach() for p in parameters], state

        return call

    return Case(prepare, f"{info.name}({configuration}) {desc}")


def _is_tensor(x: Any) -> bool:
    return isinstance(x, torch.Tensor)


def _optimizer_error(info: Any, error: Any) -> Case:
    inputs = error.optimizer_error_input

    def prepare(device: str) -> Callable[[Wrap], Any]:
        parameters = [torch.nn.Parameter(torch.ones(2, 2, device=device))] if inputs.params is None else inputs.params
        moved = place((parameters, inputs.kwargs), device)

        def call(wrap: Wrap) -> Any:
            optimizer = info.optim_cls(moved[0], **moved[1])
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    parameter.grad = torch.ones_like(parameter)
            return optimizer.step()

        return call

    return Case(prepare, f"{info.name}({inputs.kwargs}) {inputs.desc}")


_MAKERS: dict[str, Callable[[rows.Row], list[Case]]] = {
    "op_db": _operator,
    "foreach": _foreach,
    "module_db": _module,
    "optim_db": _optimizer,
}
