"""`torch.compile(model, backend="openxla")`: the functions that Dynamo calls."""

from __future__ import annotations

import contextlib
import functools
import gc
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch

from lazy_runtime.common import interrupts, ownership
from lazy_runtime.compat.dynamo import GlobalStateSource, GuardBuilder, aot_autograd, install_guard
from lazy_runtime.compat.torch import forward_level_of
from lazy_runtime.compat.tracing import (
    TracingContext,
    functorch_config,
    min_cut_rematerialization_partition,
)

from . import asynchronous_compile
from .asynchronous_compile import Prepare
from .compiled import CompiledGraph, reset
from .dynamo import attention, registration, step_capture
from .graph import checkpoints, metadata, overlap, returned_inputs, saved, tangents
from .graph.overwritten_inputs import save_as_read
from .inference import constant_hoisting
from .packaging import ahead_of_time


class _Options(NamedTuple):
    """What `options=` says; see `openxla`."""

    freezing: bool = False
    compile_in_background: bool = False
    whole_step: bool = False


def _compile_forward(
    gm: torch.fx.GraphModule, examples: Sequence[Any], prepare: Prepare, training: bool = True
) -> Callable[..., Any]:
    """AOTAutograd's compiler of forward graphs that have a backward one. What cannot be compiled is said here, within
    `torch.compile`'s own error handling, unless the sizes come with the calls.
    """
    notes = metadata.current()
    returned_inputs.check(notes)
    tangents.lay_out_apart(notes)
    visible = metadata.visible(notes)
    updated = _parameters(gm) if training else None
    ends_step = training and _updates_parameters(notes)
    graph = CompiledGraph(gm, examples, _static_arguments(gm), visible, metadata.aliases(notes), updated, ends_step)
    if not graph.is_dynamic:
        prepare(graph, examples)
    return graph


def _compile_inference(
    gm: torch.fx.GraphModule, examples: Sequence[Any], prepare: Prepare, arguments: Sequence[Any], freezing: bool
) -> Callable[..., Any]:
    """AOTAutograd's inference compiler: what depends on parameters alone is computed apart.

    Args:
        arguments: what Dynamo compiles the graph for.
    """
    notes = metadata.current()
    returned_inputs.check(notes)
    with torch.no_grad():
        parts = constant_hoisting.split(gm, _static_arguments(gm), freezing)
    if parts is None:
        return _compile_forward(gm, examples, prepare, training=False)
    visible = metadata.visible(notes)
    graph = constant_hoisting.HoistedParameters(parts, examples, visible, metadata.aliases(notes))
    if not graph.is_dynamic:
        prepare(graph, list(arguments))
    return graph


def _compile_backward(gm: torch.fx.GraphModule, examples: Sequence[Any], prepare: Prepare) -> Callable[..., Any]:
    """AOTAutograd's backward compiler. It is called along with the forward one, for many a forward that nobody runs
    backward, so XLA compiles at the first backward pass, unless it does so in the background.
    """
    static = _static_arguments(gm)
    checkpoints.set_apart(gm, static)
    graph = CompiledGraph(gm, examples, static, updated=frozenset())
    if prepare is not asynchronous_compile.at_once and not graph.is_dynamic:
        prepare(graph, examples)
    return graph


def _static_arguments(gm: torch.fx.GraphModule) -> frozenset[int]:
    """Numbers of the placeholders that are parameters or buffers, in a forward or a backward graph."""
    return _placeholders(gm, getattr(metadata.current(), "static_input_indices", None) or ())


def _parameters(gm: torch.fx.GraphModule) -> frozenset[int]:
    """Those of them that the graph itself does not write to, as it does to a batch norm's statistics: where they have
    pending updates, the training step before has ended.
    """
    notes = metadata.current()
    if notes is None:
        return frozenset()
    infos = notes.input_info
    return _placeholders(gm, [n for n in notes.static_input_indices if not infos[n].mutates_data])


def _updates_parameters(notes: Any) -> bool:
    """Whether a graph with a backward pass in it has the optimizer's update as well."""
    return notes is not None and any(info.mutates_data and info.requires_grad for info in notes.input_info)


def _placeholders(gm: torch.fx.GraphModule, indices: Iterable[int]) -> frozenset[int]:
    """Numbers of the placeholders that are these arguments.

    AOTAutograd counts arguments over the forward graph; a partitioned graph has them under the names `primals_1`,
    `primals_2`, ..., and the backward graph keeps the names of those that it needs.
    """
    wanted = set(indices)
    found = set()
    for number, node in enumerate(gm.graph.find_nodes(op="placeholder")):
        primal = _PRIMAL.fullmatch(node.target)
        if (int(primal[1]) - 1 if primal else number if node.target.startswith("arg") else -1) in wanted:
            found.add(number)
    return frozenset(found)


_PRIMAL = re.compile(r"primals_(\d+)")


def _partition(joint: torch.fx.GraphModule, inputs: Any, **options: Any) -> Any:
    """Torch's min-cut partition into a forward and a backward graph, which recomputes what is cheap.

    Within an activation checkpoint, or for a budget of memory, more is to be recomputed. What is random is saved all
    the same: the operators that would draw it again from a saved state know no device but those with generators of
    torch's. An input that is overwritten is saved as it was read.
    """
    forward, backward = _cut(joint, inputs, **options)
    save_as_read(forward, backward, options["num_fwd_outputs"])
    return forward, backward


def _cut(joint: torch.fx.GraphModule, inputs: Any, **options: Any) -> Any:
    """The partition that saves what `saved.py` says."""
    is_random = saved.keep(joint)
    budget: Any = functorch_config.activation_memory_budget
    if is_random and budget == 0:  # torch saves the arguments alone then, whatever must be saved
        budget = _NEARLY_NONE
    with functorch_config.patch(activation_memory_budget=budget):
        parts = min_cut_rematerialization_partition(joint, inputs, **options)
    values: Any = parts[0].graph.output_node().args[0]
    if not any(isinstance(each, torch.fx.Node) and isinstance(each.meta.get("val"), tuple | list) for each in values):
        return parts
    # Where nothing but random operators is dear, torch 2.13 saves them as they are: all results of one as one value.
    with functorch_config.patch(activation_memory_budget=1.0, aggressive_recomputation=True):
        return min_cut_rematerialization_partition(joint, inputs, **options)


#: A budget of memory for which all is recomputed that may be.
_NEARLY_NONE = 1e-9


def openxla(gm: torch.fx.GraphModule, examples: Sequence[Any], **options: Any) -> Callable[..., Any]:
    """The backend: inference and training graphs, on xla tensors or, in their own memory, on plain ones.

    Args:
        options: `options={"freezing": True}`: in inference, parameters and buffers on the CPU are taken as they are at
            the first call, and what depends on them alone is computed once, whatever is written to them later. On xla
            it is computed once in any case, and anew after a write.
            `options={"compile_in_background": True}`: of tensors on the CPU; torch's own kernels compute the calls that
            come before XLA is done. Graphs with symbolic sizes are compiled when they are called all the same.
            `options={"whole_step": True}`: refuses what is no training step with its backward pass, and numbers for
            which it would be compiled again. It is how `lazy_runtime.compile` asks whether a step can be traced.

    Raises:
        TypeError: there are other options.
        ValueError: whole_step, and it is none.
        NotImplementedError: compile_in_background of tensors on an xla device.
        RuntimeError: torch_xla is installed, which owns the device and the name.
    """
    owner = ownership.other_owner()
    if owner is not None:
        raise RuntimeError(owner)
    chosen = _options(options)
    step_capture.warn_if_impossible()
    prepare, traced = asynchronous_compile.at_once, gm
    if chosen.compile_in_background:
        if any(isinstance(example, torch.Tensor) and example.device.type == "xla" for example in examples):
            raise NotImplementedError(
                "compile_in_background is for tensors on the CPU: on an xla device there is nothing to run meanwhile, "
                "since eager mode compiles each operator there"
            )
        prepare, traced = asynchronous_compile.Jobs(), asynchronous_compile.copy_of(gm)
    if _differentiates_forward():
        return gm  # derivatives of that kind go through torch's own operators alone
    attention.keep_whole(gm)
    # a graph without gradients that holds a backward pass (`step_capture.py`) is of a training step
    differentiates = bool(gm.graph.find_nodes(op="call_function", target=torch.autograd.grad))
    if chosen.whole_step and not (differentiates and _has_no_numbers(gm)):
        raise ValueError("no training step with its backward pass, or one that depends on a number that may change")
    forward = functools.partial(_compile_forward, prepare=prepare)
    arguments = list(examples)
    compile_graph = functools.partial(
        aot_autograd,
        fw_compiler=forward,
        bw_compiler=functools.partial(_compile_backward, prepare=prepare),
        # recomputes views: the default one saves, and so copies, every transposed weight for the backward graph
        partition_fn=_partition,
        inference_compiler=forward
        if differentiates
        else functools.partial(_compile_inference, prepare=prepare, arguments=arguments, freezing=chosen.freezing),
        decompositions={},
    )
    # torch's C++ makes TypeErrors of interrupts in what it calls
    with interrupts.deferred(), _no_garbage_collection(), ahead_of_time.without_cache():
        try:
            compiled = compile_graph(keep_inference_input_mutations=True)(gm, examples)
        except returned_inputs.MisplacedOutput:
            compiled = compile_graph(keep_inference_input_mutations=False)(gm, examples)
    arguments.clear()  # torch 2.11 keeps the compilers of a training graph as long as the graph
    overlap.guard(gm, examples, metadata.current())
    compiled = step_capture.reattach(gm, compiled)
    if ahead_of_time.is_asked_for():
        return ahead_of_time.SavedFunction(compiled, gm, examples)
    if isinstance(prepare, asynchronous_compile.Jobs) and prepare.pending:
        return asynchronous_compile.Meanwhile(traced, compiled, prepare)
    return compiled


def _differentiates_forward() -> bool:
    """Whether the call that is compiled is within `torch.autograd.forward_ad.dual_level()`, which Dynamo is told to
    guard: of a function that was compiled outside, the tangents would be lost without a word.
    """
    if TracingContext.try_get() is not None:
        install_guard(GlobalStateSource().make_guard(GuardBuilder.DUAL_LEVEL))
    return forward_level_of(torch.autograd.forward_ad) >= 0


def _options(options: dict[str, Any]) -> _Options:
    given = options.get("options", {})
    known = set(options) <= {"options"} and isinstance(given, dict) and set(given) <= set(_Options._fields)
    if known and all(isinstance(value, bool) for value in given.values()):
        return _Options(**given)
    found = ", ".join(f"{name}={value!r}" for name, value in sorted(options.items()))
    raise TypeError(
        f"backend='openxla' takes no mode and no options but {', '.join(_Options._fields)} (True or False), got "
        f"{found}: leave the rest out of torch.compile"
    )


def _has_no_numbers(gm: torch.fx.GraphModule) -> bool:
    """Whether all symbols among the arguments are sizes of tensors."""
    arguments = [node.meta["example_value"] for node in gm.graph.find_nodes(op="placeholder")]
    sizes = {str(size) for each in arguments if isinstance(each, torch.Tensor) for size in each.shape}
    return all(str(each) in sizes for each in arguments if isinstance(each, torch.SymInt))


@contextlib.contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Compiling makes many objects that stay, which sets off collections of all that there are: 0.3 s each, with torch
    and jax in the process. Where threads compile at once, the first to end turns it on again.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def torchxla_trace_once(gm: torch.fx.GraphModule, examples: Sequence[Any], **options: Any) -> Callable[..., Any]:
    """PyTorch/XLA 2.0's name of the inference backend; warns and forwards to `openxla`."""
    _deprecated("torchxla_trace_once")
    return openxla(gm, examples, **options)


def aot_torchxla_trace_once(gm: torch.fx.GraphModule, examples: Sequence[Any], **options: Any) -> Callable[..., Any]:
    """PyTorch/XLA 2.0's name of the training backend; warns and forwards to `openxla`."""
    _deprecated("aot_torchxla_trace_once")
    return openxla(gm, examples, **options)


@functools.cache
def _deprecated(name: str) -> None:
    warnings.warn(
        f"backend={name!r} is PyTorch/XLA 2.0's name: use backend='openxla'", DeprecationWarning, stacklevel=3
    )


# torch knows a backend that is given as a function by this name, and then does for it what it does for its own
openxla.compiler_name = "openxla"  # type: ignore[attr-defined]
for _each in (openxla, torchxla_trace_once, aot_torchxla_trace_once):
    _each.reset = reset  # type: ignore[attr-defined]
registration.register((openxla, torchxla_trace_once, aot_torchxla_trace_once))
