"""Private names of what traces: fake tensors, decompositions, `make_fx`, AOTAutograd, higher-order operators.

Nothing here imports Dynamo.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .rows import BACKEND, NOTHING, XLA, Row, finder, group, needed_by

if TYPE_CHECKING:  # what type checkers are to know better than Any
    from torch._decomp import decomposition_table as decomposition_table
    from torch._guards import CompileContext as CompileContext
    from torch._guards import TracingContext as TracingContext
    from torch._guards import tracing as tracing
    from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND as ELEMENTWISE_TYPE_PROMOTION_KIND
    from torch._prims_common import corresponding_complex_dtype as corresponding_complex_dtype
    from torch._prims_common import elementwise_dtypes as elementwise_dtypes
    from torch._prims_common import get_computation_dtype as get_computation_dtype
    from torch._prims_common import suggest_memory_format as suggest_memory_format
    from torch._subclasses.fake_tensor import FakeTensor as FakeTensor
    from torch._subclasses.fake_tensor import FakeTensorMode as FakeTensorMode

FAKE_TENSORS = (
    Row(
        "torch._subclasses.fake_tensor:FakeTensor",
        "stand-ins of a trace are no tensors of the device",
        "the xla device",
    ),
    Row(
        "torch.ao.quantization.fx._decomposed",
        "the operators of PT2E's quantisation are defined where this is imported",
        "`torch_xla.experimental.quantized`",
        plain="quantized_decomposed",
    ),
    Row(
        "torch._subclasses.fake_tensor:FakeTensorMode",
        "the function of a loop is traced without data",
        "`torch_xla.experimental.scan`, `scan_layers`, `GRU`, `assume_pure`",
    ),
    Row(
        "torch._subclasses.fake_tensor:FakeTensor.__new__",
        "a stand-in made with `device='xla'` is on the current device",
        "factories on xla in compiled functions",
        plain="fake_tensor_new",
        is_exchanged=True,
    ),
    Row(
        "torch._subclasses.fake_tensor:_is_indexed_device_type",
        "a stand-in made with `device='xla'` is on the current device",
        "nothing: `FakeTensor.__new__` is exchanged instead",
        plain="is_indexed_device_type",
        is_exchanged=True,
        since="2.12",
    ),
    *group(
        "the size of what `aten::_unique` gives depends on data, which torch before 2.13 does not know",
        "the gradient of `index_fill` in compiled functions",
        "torch._subclasses.fake_impls:unique2 as infer_unique2",
        "torch._subclasses.fake_impls:op_implementations_dict as fake_rules",
    ),
)

DECOMPOSITIONS = (
    *group(
        "operators without a lowering are made of others",
        "operators without a lowering",
        "torch._decomp:decomposition_table",
        "torch._prims",
        "torch._prims_common.wrappers:_maybe_resize_out",
    ),
    *group(
        "results have torch's dtypes and layouts",
        "the table of operators",
        "torch._prims_common:ELEMENTWISE_TYPE_PROMOTION_KIND",
        "torch._prims_common:corresponding_complex_dtype",
        "torch._prims_common:elementwise_dtypes",
        "torch._prims_common:get_computation_dtype",
        "torch._prims_common:suggest_memory_format",
    ),
    *group(
        "a Fourier transform's result has torch's strides",
        "Fourier transforms on xla",
        "torch._meta_registrations:_exec_fft",
        "torch._meta_registrations:_sort_dims",
    ),
)

TRACES = (
    *group(
        "the trace that is going on is known",
        "compiled functions",
        "torch._guards:TracingContext",
        "torch._guards:tracing",
        "torch._guards:CompileContext",
        "torch._guards:detect_fake_mode",
    ),
    Row(
        "torch.compiler:_is_compiling_flag",
        "a module that is traced for jax is told so, by `torch.compiler.is_compiling`",
        "modules of transformers with masks as functions of jax",
        plain="compiling_flag",
        is_exchanged=True,
    ),
    Row(
        "torch._guards:ChainedSource.get_value",
        "torch 2.11 keeps objects alive where it looks for an attribute that is missing",
        "memory of compiled steps in torch 2.11",
        plain="chained_source_get_value",
        is_exchanged=True,
    ),
    Row(
        "torch.fx.experimental.proxy_tensor:_MakefxTracer._trace_inner",
        "`make_fx` sees the user's xla tensors",
        "`make_fx` on xla tensors",
        plain="make_fx_trace",
        is_exchanged=True,
    ),
    Row("torch.fx._lazy_graph_module:_LazyGraphModule", "parts of a graph are compiled late", "compiled inference"),
)

AOT_AUTOGRAD = (
    *group(
        "the backend is told what a graph's inputs and outputs are, and how its backward pass is cut off",
        "the backend `openxla`",
        "torch._functorch.config as functorch_config",
        "torch._functorch.partitioners:min_cut_rematerialization_partition",
        "torch._functorch._aot_autograd.schemas:MutationType",
        "torch._functorch._aot_autograd.schemas:OutputType",
    ),
    Row(
        "torch._functorch._aot_autograd.schemas:MemoryFormatMeta",
        "gradients of outputs whose elements share memory keep theirs apart",
        "the backend `openxla`",
    ),
)

FLEX_ATTENTION = (
    *group(
        "`flex_attention` on xla is composed of other operators",
        "`flex_attention` on xla",
        "torch._higher_order_ops.flex_attention:flex_attention",
        "torch._higher_order_ops.flex_attention:sdpa_dense",
    ),
    Row(
        "torch.nn.attention.flex_attention:_validate_device",
        "torch refuses `flex_attention` on devices that it does not know",
        "`flex_attention` on xla",
        plain="validate_flex_device",
        is_exchanged=True,
    ),
)

CONTROL_FLOW = (
    *group(
        "control flow on xla tensors outside of compiled functions",
        "`torch.cond` and its like on xla",
        "torch._higher_order_ops.cond:cond_op",
        "torch._higher_order_ops.cond:cond_op_dense",
        "torch._higher_order_ops.while_loop:while_loop_op",
        "torch._higher_order_ops.while_loop:while_loop_dense",
        "torch._higher_order_ops.map:map_impl",
        "torch._higher_order_ops.map:map_dense",
        "torch._higher_order_ops.scan:scan_op",
    ),
)

GRAPHS = (
    *group(
        "the user's operators that write to their arguments are in a graph as pure ones",
        "operators of the user's that write, in compiled functions",
        "torch._higher_order_ops.auto_functionalize:auto_functionalized_dense",
        "torch._higher_order_ops.auto_functionalize:auto_functionalized_v2_dense",
    ),
    *group(
        "what raises for singular matrices stays in a graph",
        "errors of `torch.linalg` in compiled functions",
        "torch._higher_order_ops.effects:with_effects",
        "torch._higher_order_ops.effects:_get_effect",
        "torch._higher_order_ops.effects:_register_effectful_op",
        "torch._higher_order_ops.effects:_EffectType",
    ),
)

OTHERS = (Row("torch._lazy.closure:AsyncClosureHandler", "closures of a step run in a thread", "`add_step_closure`"),)

ROWS = needed_by(
    XLA,
    FAKE_TENSORS + DECOMPOSITIONS + TRACES + AOT_AUTOGRAD + FLEX_ATTENTION + CONTROL_FLOW + GRAPHS + OTHERS,
    {
        BACKEND: (
            "AsyncClosureHandler",
            "CompileContext",
            "EffectType",
            "LazyGraphModule",
            "MemoryFormatMeta",
            "MutationType",
            "OutputType",
            "TracingContext",
            "auto_functionalized_dense",
            "auto_functionalized_v2_dense",
            "chained_source_get_value",
            "fake_rules",
            "functorch_config",
            "get_effect",
            "infer_unique2",
            "is_indexed_device_type",
            "min_cut_rematerialization_partition",
            "register_effectful_op",
            "with_effects",
        ),
        NOTHING: (
            *(row.exported for row in FLEX_ATTENTION + CONTROL_FLOW),
            "FakeTensorMode",
            "compiling_flag",
            "fake_tensor_new",
            "quantized_decomposed",
            "tracing",
        ),
    },
)

__getattr__ = finder(globals(), ROWS)
