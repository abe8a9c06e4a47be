"""Private names of Dynamo. Asking for most of them imports it, which takes a second: importing this module does not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .rows import BACKEND, NOTHING, Row, attributes, finder, group, needed_by

if TYPE_CHECKING:  # what type checkers are to know better than Any
    from torch._dynamo.guards import GuardBuilder as GuardBuilder
    from torch._dynamo.output_graph import OutputGraph as OutputGraph
    from torch._dynamo.source import AttrSource as AttrSource
    from torch._dynamo.source import TensorProperty as TensorProperty
    from torch._dynamo.source import TensorPropertySource as TensorPropertySource
    from torch._dynamo.variables.functions import SkipFunctionVariable as SkipFunctionVariable
    from torch._dynamo.variables.optimizer import OptimizerVariable as OptimizerVariable
    from torch._dynamo.variables.tensor import TensorVariable as TensorVariable

NAME = (
    *group(
        "`backend='openxla'` means this package",
        "the backend by its name",
        "torch._dynamo.backends.registry:_BACKENDS as registered_backends",
        "torch._dynamo.backends.registry:_COMPILER_FNS as registered_compilers",
    ),
)

PARTS = (
    Row(
        "torch._dynamo.backends.registry:lookup_backend",
        "PyTorch/XLA's second backend of Dynamo is the first one by another name",
        "`torch_xla._dynamo.dynamo_backend2`",
    ),
    Row(
        "torch._dynamo:nonstrict_trace",
        "a jax function is one call of Dynamo's graph",
        "`lazy_runtime.jax.call` in compiled functions",
    ),
    Row(
        "torch._dynamo.aot_compile_types:SerializableCallable",
        "torch saves a compiled function",
        "`aot_compile(...).save_compiled_function`",
    ),
)

GRAPHS = (
    *group(
        "AOTAutograd traces for the backend, which guards what it relies on",
        "the backend `openxla`",
        "torch._dynamo.backends.common:aot_autograd",
        "torch._dynamo.guards:GuardBuilder",
        "torch._dynamo.guards:install_guard",
        "torch._dynamo.source:GlobalStateSource",
        "torch._dynamo.exc:TorchDynamoException",
        "torch._dynamo.exc:FailOnRecompileLimitHit",
    ),
    *group(
        "inputs that share memory are guarded where a graph writes to one",
        "compiled functions that write to views: wrong results",
        "torch._dynamo.guards:_get_closure_vars as guard_globals",
        "torch._dynamo.source:TensorProperty",
        "torch._dynamo.source:TensorPropertySource",
    ),
    Row(
        "torch._dynamo.callback:CompilationCallbackHandler.install_callbacks",
        "Ctrl-C in a compilation leaves a thread as it was",
        "the thread's state after Ctrl-C",
        plain="install_callbacks",
        is_exchanged=True,
    ),
)

SKIPPED_FILES = (
    Row(
        "torch._dynamo.trace_rules:add",
        "Dynamo does not trace the package's files",
        "operators between two graphs",
        plain="skip_package",
    ),
    *group(
        "Dynamo traces those files of the package that stand around torch's own",
        "moves of modules and Adam in compiled functions",
        "torch._dynamo.trace_rules:get_mod_inlinelist as inlined_files",
        "torch._dynamo.trace_rules:get_legacy_mod_inlinelist as inlined_modules",
        is_exchanged=True,
    ),
)

LAYERS = (
    *group(
        "recurrent layers are traced",
        "recurrent layers in compiled functions: graphs break at them",
        "torch._dynamo.config",
        "torch._dynamo.config:allow_rnn",
        "torch._dynamo.variables.torch:TorchInGraphFunctionVariable",
    ),
    *group(
        "recurrent layers are traced",
        "recurrent layers in compiled functions: graphs break at them",
        "torch._dynamo.variables.builder:VariableBuilder.wrap_module",
        "torch._dynamo.variables.torch:TorchInGraphFunctionVariable.call_function as call_torch_function",
        is_exchanged=True,
    ),
)

OPTIMIZERS = group(
    "optimizers count their steps on the device",
    "a wait in each compiled step of an optimizer",
    "torch._dynamo.variables.optimizer:OptimizerVariable._set_capturable",
    "torch._dynamo.variables.optimizer:OptimizerVariable.move_step_if_cpu",
    is_exchanged=True,
)

_STEPS = "a training step is one graph"
_PARTS = "training steps in one program: they are three"

STEPS = (
    *group(
        _STEPS,
        _PARTS,
        "torch._dynamo:graph_break",
        "torch._dynamo.config:trace_autograd_ops",
        "torch._dynamo.exc:unimplemented",
        "torch._dynamo.eval_frame:innermost_fn",
        "torch._dynamo.output_graph:OutputGraph",
        "torch._dynamo.output_graph:collect_reachable_grad_fns",
        "torch._dynamo.source:AttrSource",
        "torch._dynamo.source:is_from_optimizer_source",
        "torch._dynamo.variables as variables",
        "torch._dynamo.variables.builder:wrap_fx_proxy",
        "torch._dynamo.variables.functions:SkipFunctionVariable",
        "torch._dynamo.variables.optimizer:ArgMappingException",
        "torch._dynamo.variables.optimizer:OptimizerVariable",
        "torch._dynamo.variables.tensor:TensorVariable",
        "torch.optim.optimizer:_use_grad_for_differentiable",
    ),
    *group(
        _STEPS,
        _PARTS,
        "torch._dynamo.output_graph:OutputGraph._validate_outputs_safe_for_autograd_nodes as validate_outputs",
        "torch._dynamo.variables.functions:SkipFunctionVariable.call_function as call_skipped_function",
        "torch._dynamo.variables.optimizer:OptimizerVariable.call_method as call_optimizer_method",
        "torch._dynamo.variables.tensor:TensorVariable._collect_backward_inputs",
        "torch._dynamo.variables.tensor:TensorVariable.method_backward",
        is_exchanged=True,
    ),
    *attributes(
        "torch.optim:Adam",
        "torch.optim:Adam",
        "an optimizer's state is made before its step is traced",
        _PARTS,
        "_init_group as init_group_of",
    ),
    Row(
        "torch._dynamo.variables.optimizer:OptimizerVariable.var_getattr",
        _STEPS,
        "nothing: `tp_getattro_impl` is exchanged instead",
        plain="read_optimizer_until_2_13",
        is_exchanged=True,
        until="2.14",
    ),
    Row(
        "torch._dynamo.variables.optimizer:OptimizerVariable.tp_getattro_impl",
        _STEPS,
        "nothing: `var_getattr` is exchanged instead",
        plain="read_optimizer_from_2_14",
        is_exchanged=True,
        since="2.14",
    ),
    Row(
        "torch._dynamo.variables.tensor:TensorVariable.method_attr_grad",
        "Dynamo from 2.12 on notes on None where it has found a gradient",
        "nothing: torch 2.11 notes nothing there",
        is_exchanged=True,
        since="2.12",
    ),
    Row(
        "torch._dynamo.variables.tensor:TensorVariable.tp_methods",
        "Dynamo from 2.14 on calls what stands in this table",
        "nothing: Dynamo calls the method itself",
        plain="tensor_methods",
        is_exchanged=True,
        since="2.14",
    ),
)

WRITES = (
    Row(
        "torch._dynamo.output_graph:OutputGraph.remove_tensorify_specialized_graphargs",
        "Dynamo keeps writes in place to float64 scalars",
        "writes to float64 scalars on the CPU in compiled functions: wrong results",
        plain="remove_tensorified",
        is_exchanged=True,
    ),
)

#: The method that makes an optimizer's state, as Dynamo calls it.
INIT_GROUP = "_init_group"

ROWS = needed_by(
    BACKEND,
    NAME + PARTS + GRAPHS + SKIPPED_FILES + LAYERS + OPTIMIZERS + STEPS + WRITES,
    {
        NOTHING: (
            "FailOnRecompileLimitHit",
            "TorchDynamoException",
            "allow_rnn",
            "call_optimizer_method",
            "call_skipped_function",
            "call_torch_function",
            "collect_backward_inputs",
            "lookup_backend",
            "method_attr_grad",
            "method_backward",
            "nonstrict_trace",
            "read_optimizer_from_2_14",
            "read_optimizer_until_2_13",
            "registered_backends",
            "registered_compilers",
            "remove_tensorified",
            "tensor_methods",
            "trace_autograd_ops",
            "validate_outputs",
            "wrap_module",
        ),
    },
)

__getattr__ = finder(globals(), ROWS)


def source_of(node: Any) -> Any:
    """Where a graph's argument comes from, which Dynamo notes on its node as `_dynamo_source`; None without a note."""
    return getattr(node, "_dynamo_source", None)


def is_scheduled(step: Any) -> bool:
    """Whether a learning rate's scheduler has put its function, with `_wrapped_by_lr_sched`, around an optimizer's."""
    return hasattr(step, "_wrapped_by_lr_sched")


def note_step(optimizer: Any) -> None:
    """Tells the scheduler that the optimizer's step was called, as the scheduler's function does."""
    optimizer._opt_called = True


def is_compiled(function: Any) -> bool:
    """Whether `torch.compile` has made the function, which has what it was made of as `_torchdynamo_orig_callable`."""
    return hasattr(function, "_torchdynamo_orig_callable")


def mark_constant(function: Any) -> Any:
    """The function, whose results are constants to Dynamo, by `_dynamo_marked_constant`.

    `torch.compiler.assume_constant_result` does the same, and imports Dynamo.
    """
    function._dynamo_marked_constant = True
    return function
