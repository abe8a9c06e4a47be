"""Private names of torch's core: the dispatcher, functional wrappers, tensors. All of them come with `import torch`."""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .rows import BACKEND, NOTHING, XLA, Row, attributes, finder, group, needed_by

if TYPE_CHECKING:  # what type checkers are to know better than Any
    from torch._C import DispatchKey as DispatchKey
    from torch._C import DispatchKeySet as DispatchKeySet
    from torch._ops import HigherOrderOperator as HigherOrderOperator
    from torch._ops import OpOverload as OpOverload
    from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode
    from torch.utils._pytree import tree_any as tree_any
    from torch.utils._pytree import tree_flatten as tree_flatten
    from torch.utils._pytree import tree_leaves as tree_leaves
    from torch.utils._pytree import tree_map as tree_map
    from torch.utils._pytree import tree_map_only as tree_map_only
    from torch.utils._pytree import tree_unflatten as tree_unflatten
    from torch.utils._pytree import treespec_dumps as treespec_dumps
    from torch.utils._pytree import treespec_loads as treespec_loads

_OVERLOAD = "torch.ops:aten.add.Tensor"

DISPATCHER = (
    *group(
        "kernels are registered and called by dispatch key",
        "the xla device",
        "torch._C:DispatchKey",
        "torch._C:DispatchKeySet",
        "torch._C:_dispatch_key_parse",
        "torch._C:_dispatch_tls_is_dispatch_key_excluded as is_key_excluded",
        "torch._C:_ExcludeDispatchKeyGuard",
        "torch._C:_IncludeDispatchKeyGuard",
        "torch._C:_SetExcludeDispatchKeyGuard",
        "torch._C:_DisableTorchDispatch",
        "torch._C:DisableTorchFunctionSubclass",
        "torch._C:_InferenceMode",
        "torch._C:_dispatch_has_kernel_for_dispatch_key as has_kernel",
        "torch._C:_dispatch_has_computed_kernel_for_dispatch_key as has_computed_kernel",
        "torch.utils._python_dispatch:TorchDispatchMode",
        "torch.utils._python_dispatch:_disable_current_modes",
    ),
    Row(
        "torch._C:_dispatch_get_registrations_for_dispatch_key",
        "autocast on xla takes the operators that CUDA's takes",
        "`torch.autocast('xla')`",
        plain="registrations_for_key",
    ),
    *group(
        "an operator is recorded, looked up and asked for its arguments as torch's object",
        "the xla device",
        "torch._ops:OpOverload",
        "torch._ops:HigherOrderOperator",
    ),
    *attributes(
        "torch._ops:OpOverload",
        _OVERLOAD,
        "arguments are matched with the operator's schema, and calls go on below a key",
        "the xla device",
        "_schema as schema_of",
        "_op_dk as kernel_call_of",
        "_opname as operator_name_of",
        "_overloadname as overload_name_of",
    ),
    *group(
        "arguments are trees of tensors",
        "the xla device",
        "torch.utils._pytree:tree_any",
        "torch.utils._pytree:tree_flatten",
        "torch.utils._pytree:tree_leaves",
        "torch.utils._pytree:tree_map",
        "torch.utils._pytree:tree_map_only",
        "torch.utils._pytree:tree_unflatten",
    ),
    *group(
        "a program that is saved says how its arguments and results are nested",
        "`torch_xla.stablehlo`",
        "torch.utils._pytree:treespec_dumps",
        "torch.utils._pytree:treespec_loads",
    ),
    Row("torch:_register_device_module", "`torch.xla` is a module", "`torch.xla`"),
    Row(
        "torch.library:Library._destroy",
        "kernels that wait for the first use of xla are taken back",
        "moves of CPU tensors stay slower after a late build of the C++ part",
        plain="destroy_library",
    ),
)

FUNCTIONALIZATION = group(
    "an xla tensor is a functional wrapper around an immutable tensor",
    "the xla device",
    "torch:_to_functional_tensor",
    "torch:_from_functional_tensor",
    "torch:_is_functional_tensor",
    "torch:_is_functional_tensor_base",
    "torch:_functionalize_sync",
    "torch:_functionalize_replace",
    "torch:_functionalize_commit_update",
    "torch:_sync as sync_functional",
)

TENSORS = (
    *group(
        "tensors of a class of their own are made and replaced",
        "the xla device",
        "torch:Tensor._make_wrapper_subclass",
        "torch._C:TensorBase.data_ptr as tensor_data_ptr",
    ),
    *group(
        "parameters keep their identity when a module moves to xla",
        "`module.to('xla')` with shared weights or an optimizer",
        "torch._C:_swap_tensor_impl",
        "torch:Tensor._use_count as use_count_of",
        "torch.utils._python_dispatch:is_traceable_wrapper_subclass",
    ),
    Row(
        "torch.nn:Module._apply",
        "parameters keep their identity when a module moves to xla",
        "`module.to('xla')` with shared weights or an optimizer",
        plain="module_apply",
        is_exchanged=True,
    ),
    *attributes(
        "torch:Tensor",
        "torch:Tensor",
        "hooks move with their parameter, and a compiled step refuses to leave them out",
        "hooks of parameters that move, and compiled steps",
        "_backward_hooks as backward_hooks_of",
        "_post_accumulate_grad_hooks as accumulate_hooks_of",
    ),
    *attributes(
        "torch.nn:Module",
        "torch.nn:Module()",
        "a region of `lazy_runtime.compile` is recorded again where a module gets hooks",
        "hooks that a module gets after its region was compiled",
        "_forward_pre_hooks as forward_pre_hooks_of",
        "_forward_hooks as forward_hooks_of",
        "_backward_pre_hooks as backward_pre_hooks_of",
        "_backward_hooks as module_backward_hooks_of",
    ),
    *attributes(
        "torch:UntypedStorage",
        "torch:UntypedStorage",
        "tensors that share memory are known by the address of their storage",
        "views, checkpoints and compiled graphs that write to shared memory",
        "_cdata as storage_address_of",
    ),
    *attributes(
        "torch:Tensor",
        "torch:Tensor",
        "a write to a view that a loop's function refuses is undone in the view's base",
        "`scan` and `while_loop` whose functions write to views",
        "_base as base_of",
    ),
    Row(
        "torch._C:_storage_Use_Count",
        "`resize_` asks whether other tensors share the memory",
        "`resize_` of xla tensors",
        plain="storage_use_count",
    ),
    *group(
        "a sparse tensor is computed with by its parts",
        "sparse tensors on xla",
        "torch:Tensor._nnz as nnz",
        "torch:Tensor._indices as sparse_indices",
        "torch:Tensor._values as sparse_values",
        "torch:Tensor._coalesced_ as set_coalesced",
    ),
    *group(
        "an xla tensor is pickled as one of a storage on xla",
        "`torch.save` of xla tensors",
        "torch:Tensor._reduce_ex_internal",
        "torch._tensor:_rebuild_from_type_v2",
        "torch._utils:_get_obj_state",
        "torch._utils:_rebuild_sparse_tensor",
    ),
)

AUTOGRAD = (
    *group(
        "the first backward pass on the CPU may come before xla has workers",
        "backward passes on xla after one on the CPU",
        "torch._C:_is_multithreading_enabled",
        "torch._C:_set_multithreading_enabled",
    ),
    Row(
        "torch._C:_current_graph_task_id",
        "recomputation of activation checkpoints belongs to a backward pass",
        "memory that activation checkpoints save on xla",
    ),
    Row(
        "torch.autograd.forward_ad:_current_level",
        "attention and recurrent layers of our own leave forward-mode derivatives to torch",
        "forward-mode derivatives through attention and recurrent layers",
        plain="forward_level_of",
        example="torch.autograd:forward_ad",
    ),
    Row(
        "torch._C._functorch:peek_interpreter_stack",
        "attention and recurrent layers of our own leave `torch.func` to torch",
        "`torch.func` through attention and recurrent layers",
    ),
    Row(
        "torch._C:_functions.DelayedError",
        "what a compiled step returns raises when somebody goes backward through it again",
        "compiled steps that return the loss",
    ),
)

OTHERS = (
    *group(
        "our attention obeys `torch.nn.attention.sdpa_kernel`",
        "our attention",
        "torch._C:_get_flash_sdp_enabled",
        "torch._C:_get_mem_efficient_sdp_enabled",
    ),
    Row(
        "torch._C:_get_float32_matmul_precision",
        "products obey `torch.set_float32_matmul_precision`",
        "that setting on xla",
    ),
    Row("torch._C:_from_dlpack", "results come back to the CPU without a copy", "microseconds of each result"),
    Row("torch:_foreach_copy_", "a compiled graph writes all its inputs in one call", "compiled graphs that write"),
    Row("torch:_assert_async", "checks of values wait for nothing", "`one_hot` on xla"),
    Row(
        "torch._C._dynamo.eval_frame:set_eval_frame",
        "Dynamo must not compile the package's own functions",
        "calls between two graphs of one function",
    ),
    *group(
        "reports appear under `TORCH_LOGS`",
        "`TORCH_LOGS='xla_recompiles'` and its like",
        "torch._logging._internal as torch_logging",
    ),
    Row(
        "torch.optim.optimizer:_get_fused_kernels_supported_devices",
        "optimizers take `fused=True` on xla",
        "`fused=True` on xla",
        plain="fused_devices",
        is_exchanged=True,
    ),
    Row(
        "torch.optim.adam:_single_tensor_adam",
        "Adam on xla takes a learning rate of 0",
        "NaNs after a warm-up from 0",
        plain="single_tensor_adam",
        is_exchanged=True,
    ),
    Row("torch.utils._dtype_abbrs:dtype_abbrs", "reports name dtypes as torch does", "reports"),
)

#: Where a tensor keeps the hooks that a trace would leave out.
HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")

ROWS = needed_by(
    XLA,
    DISPATCHER + FUNCTIONALIZATION + TENSORS + AUTOGRAD + OTHERS,
    {
        BACKEND: (
            "DelayedError",
            "HigherOrderOperator",
            "backward_pre_hooks_of",
            "foreach_copy_",
            "forward_hooks_of",
            "forward_pre_hooks_of",
            "module_backward_hooks_of",
        ),
        NOTHING: (
            "base_of",
            "destroy_library",
            "from_dlpack",
            "is_traceable_wrapper_subclass",
            "single_tensor_adam",
            "tree_map_only",
            "treespec_dumps",
            "treespec_loads",
        ),
    },
)

__getattr__ = finder(globals(), ROWS)


def hooks_of_all_modules() -> tuple[Mapping[Any, Any], ...]:
    """The hooks that torch runs for each module: `torch.nn.modules.module._global_forward_hooks` and its like."""
    module = pkgutil.resolve_name("torch.nn.modules.module")
    names = [name for name in sorted(vars(module)) if name.startswith("_global_") and "hooks" in name]
    return tuple(getattr(module, name) for name in names)


def set_backward_hooks(tensor: Any, hooks: Any) -> None:
    """Tells autograd of the hooks that a tensor has in `_backward_hooks`."""
    tensor._backward_hooks = hooks


def set_accumulate_hooks(tensor: Any, hooks: Any) -> None:
    """Tells autograd of the hooks that a tensor has in `_post_accumulate_grad_hooks`."""
    tensor._post_accumulate_grad_hooks = hooks


def is_unfilled(storage: Any) -> bool:
    """Whether `torch.load` is still to fill a storage, which it marks with `_torch_load_uninitialized`."""
    return getattr(storage, "_torch_load_uninitialized", False)
