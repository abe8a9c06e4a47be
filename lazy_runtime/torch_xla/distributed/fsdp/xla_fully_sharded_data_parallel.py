"""`XlaFullyShardedDataParallel`: each rank has its batch, and a part of each parameter, gradient and optimizer state.

A module's parameters are gathered where it is called, by a function that autograd knows: its gradient is shared out
among the ranks. What autograd would keep of a gathered parameter for the backward pass is not kept: it is gathered
again there (`reshard_after_forward`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from enum import Enum, auto
from typing import Any, NamedTuple

import torch
from torch import nn

from ....compat.torch import storage_address_of
from ....execution import mark_step
from ....processes import thread_ranks
from ... import runtime as xr
from ...core import collectives
from .sharding import FlatMetadata, Layout, ShardedParameter, flatten
from .trees import apply_to_tensors, collect_tensors
from .utils import apply_xla_patch_to_nn_linear, checkpoint_module, dummy_all_reduce, unwrap_checkpoint
from .wrap import recursive_wrap

__all__ = [
    "FLOAT_DTYPES",
    "XLA_DISABLE_FUNCTIONALIZATION",
    "TrainingState",
    "XlaFullyShardedDataParallel",
    "apply_to_tensors",
    "collect_tensors",
]

#: What `compute_dtype` and `buffer_dtype` may be.
FLOAT_DTYPES = [torch.float32, torch.float16, torch.bfloat16]

#: Tensors on xla are always functionalized here.
XLA_DISABLE_FUNCTIONALIZATION = False


class TrainingState(Enum):
    """What a wrapped module is in the midst of."""

    IDLE = auto()
    FORWARD = auto()
    BACKWARD_PRE = auto()
    BACKWARD_POST = auto()


class XlaFullyShardedDataParallel(nn.Module):
    """A module on xla that this rank has a part of. Make the optimizer afterwards: `parameters()` are the parts.

    The mean over the ranks is the gradient. Parameters that modules within are wrapped with are theirs.

    Args:
        module: its parameters are cut, those on other devices after a move to xla; equal on all ranks.
        reshard_after_forward: gather a parameter again for the backward pass, instead of keeping it.
        flatten_parameters: gather all parameters of the module together.
        execute_sharding_on_init: execute what is pending when it has been cut.
        optimization_barrier_in_forward: gather a module's parameters when its inputs are there, and not before.
        optimization_barrier_in_backward: the same of the backward pass and the gradients that it begins with.
        sync_on_finalization: not supported: call `torch_xla.sync()` after `backward()`.
        disable_reshard_on_root: the outermost module's own parameters are kept for the backward pass.
        compute_dtype: what parameters and floating-point inputs are cast to.
        buffer_dtype: what floating-point buffers are cast to; `compute_dtype` by default.
        fp32_reduce_scatter: sum gradients as float32.
        sharding_groups: groups of ranks, each of which has the whole module.
        sharding_rank, sharding_world_size: this rank's number in its group, and how many ranks that has.
        shard_param_on_dim_0: cut the first dimension of each parameter, instead of its elements in a row.
        pin_layout_in_collective_ops: accepted for PyTorch/XLA's sake.
        reduce_scatter_bucket_size_mb, coalesce_all_gather_ops: accepted for its sake: XLA itself puts collectives
            together.
        auto_wrap_policy: which modules within are wrapped (`fsdp.wrap`).
        auto_wrapper_callable: what wraps them; by default this class with the same arguments.
        param_init_fn: fills a module whose parameters are on the meta device; by default `to_empty` and
            `reset_parameters` of the modules that have it.
        kwargs: `_shard_size_multiple` fills parts up, `_use_xla_patched_linear` has linear layers call
            `XLAPatchedLinear`, and `_debug_dummy_...` leave collectives out, to look at their cost. What else begins
            with `_debug` is accepted and changes nothing.

    Raises:
        ValueError: a dtype is not one of `FLOAT_DTYPES`, groups come without the rank and size in them, or the module
            is wrapped already.
        NotImplementedError: `sync_on_finalization`.
        TypeError: there is no such argument.
    """

    def __init__(
        self,
        module: nn.Module,
        reshard_after_forward: bool = True,
        flatten_parameters: bool = False,
        execute_sharding_on_init: bool = True,
        optimization_barrier_in_forward: bool = True,
        optimization_barrier_in_backward: bool = True,
        sync_on_finalization: bool = False,
        disable_reshard_on_root: bool = True,
        compute_dtype: torch.dtype | None = None,
        buffer_dtype: torch.dtype | None = None,
        fp32_reduce_scatter: bool = False,
        sharding_groups: Any = None,
        sharding_rank: int | None = None,
        sharding_world_size: int | None = None,
        shard_param_on_dim_0: bool = False,
        pin_layout_in_collective_ops: bool = False,
        reduce_scatter_bucket_size_mb: int | None = 0,
        coalesce_all_gather_ops: bool = False,
        auto_wrap_policy: Callable[..., bool] | None = None,
        auto_wrapper_callable: Callable[..., nn.Module] | None = None,
        param_init_fn: Callable[[nn.Module], None] | None = None,
        **kwargs: Any,
    ):
        options = {
            name: value for name, value in locals().items() if name not in ("self", "module", "kwargs", "__class__")
        }
        _refuse(module, options, kwargs)
        super().__init__()
        if auto_wrap_policy is not None:
            of_this = ("auto_wrap_policy", "auto_wrapper_callable")
            nested = {name: value for name, value in {**options, **kwargs}.items() if name not in of_this}
            recursive_wrap(
                module, auto_wrap_policy, auto_wrapper_callable or type(self), (), (), only_wrap_children=True, **nested
            )
        is_checkpointed = unwrap_checkpoint(module)
        _fill(module, param_init_fn)
        if kwargs.get("_use_xla_patched_linear", False):
            apply_xla_patch_to_nn_linear(module)
        self.world_size = xr.world_size() if sharding_world_size is None else sharding_world_size
        self.rank = xr.global_ordinal() if sharding_rank is None else sharding_rank
        self.sharding_groups, self.compute_dtype = sharding_groups, compute_dtype
        self.buffer_dtype = compute_dtype if buffer_dtype is None else buffer_dtype
        self.reshard_after_forward, self.disable_reshard_on_root = reshard_after_forward, disable_reshard_on_root
        self._barriers = optimization_barrier_in_forward, optimization_barrier_in_backward
        self._is_reduced_for_real = not kwargs.get("_debug_dummy_all_reduce_op", False)
        self._layout = Layout(
            self.world_size,
            self.rank,
            sharding_groups,
            shard_param_on_dim_0 and not flatten_parameters,
            kwargs.get("_shard_size_multiple", 128) if self.world_size > 1 else 1,
            compute_dtype,
            fp32_reduce_scatter,
            not kwargs.get("_debug_dummy_all_gather_op", False),
            not kwargs.get("_debug_dummy_reduce_scatter_op", False),
        )
        before = _predivision(self.world_size)
        self.gradient_predivide_factor, self.gradient_postdivide_factor = before, self.world_size / before
        self.training_state, self._is_synced, self._member = TrainingState.IDLE, True, thread_ranks.member()
        self._is_root: bool | None = None
        self._fsdp_wrapped_module = module
        self._units: list[_Unit] = []
        self._shard(flatten_parameters)
        self._cast_buffers()
        if is_checkpointed:
            checkpoint_module(self)
        if execute_sharding_on_init:
            mark_step.mark_step()

    # ---- cutting

    def _shard(self, flatten_parameters: bool) -> None:
        """Puts parts in the places of the parameters that no module within has."""
        places: dict[int, list[_Place]] = {}
        full: dict[int, tuple[str, nn.Parameter]] = {}
        for prefix, module in _own_modules(self._fsdp_wrapped_module):
            for name, parameter in module.named_parameters(recurse=False):
                places.setdefault(id(parameter), []).append(_Place(module, name))
                full.setdefault(id(parameter), (f"{prefix}.{name}" if prefix else name, parameter))
        if not flatten_parameters:
            for key, (name, parameter) in full.items():
                made = ShardedParameter(parameter, name, self._layout)
                for place in places[key]:
                    place.module.register_parameter(place.name, made.shard)
                self._units.append(_Unit(made, [places[key]], None))
            return
        keys = {name: key for key, (name, _) in full.items()}
        for key in full:
            for place in places[key]:
                del place.module._parameters[place.name]
        for number, (flat, metadata) in enumerate(flatten(list(full.values()))):
            made = ShardedParameter(flat, f"flat_param_{number}", self._layout)
            self._fsdp_wrapped_module.register_parameter(made.name, made.shard)
            self._units.append(_Unit(made, [places[keys[name]] for name in metadata.names], metadata))

    def _cast_buffers(self) -> None:
        self._buffer_dtypes: dict[str, torch.dtype] = {}
        for prefix, module in _own_modules(self._fsdp_wrapped_module):
            for name, buffer in module.named_buffers(recurse=False):
                moved = buffer.to("xla")
                if self.buffer_dtype is not None and buffer.is_floating_point():
                    self._buffer_dtypes[f"_fsdp_wrapped_module.{prefix}{'.' * bool(prefix)}{name}"] = buffer.dtype
                    moved = moved.to(self.buffer_dtype)
                module._buffers[name] = moved

    # ---- calling

    @property
    def module(self) -> nn.Module:
        """The wrapped module."""
        return self._fsdp_wrapped_module

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the module gives."""
        with self._member.here():  # a checkpoint calls it in autograd's thread
            return self._forward(args, kwargs)

    def _forward(self, args: Any, kwargs: Any) -> Any:
        if self.compute_dtype is not None:
            args, kwargs = apply_to_tensors(self._cast, (args, kwargs))
        if self._is_root is None:  # the first to be called has all others within
            for each in self._fsdp_modules():
                each._is_root = each is self
        inputs = [each.detach() for each in collect_tensors((args, kwargs)) if each.device.type == "xla"]
        after = inputs if self._barriers[0] else []
        outer, self.training_state = self.training_state, TrainingState.FORWARD
        gathered = _Gathered(self, after)
        is_kept = not self.reshard_after_forward or (self._is_root and self.disable_reshard_on_root)
        hooks: Any = contextlib.nullcontext()
        if not is_kept and torch.is_grad_enabled():
            hooks = torch.autograd.graph.saved_tensors_hooks(gathered.pack, gathered.unpack)
        try:
            with gathered.in_place(), hooks:
                return self._fsdp_wrapped_module(*args, **kwargs)
        finally:
            self.training_state = outer

    def _cast(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self.compute_dtype) if tensor.is_floating_point() else tensor

    def shared_out(self, unit: _Unit, gradient: torch.Tensor) -> torch.Tensor | None:
        """This rank's part of a gradient, or None where it is not shared out yet (`no_sync`)."""
        sharded = unit.sharded
        with torch.no_grad(), self._member.here():
            if sharded.unreduced is not None:
                gradient = gradient + sharded.unreduced
                sharded.unreduced = None
            if not self._is_synced:
                sharded.unreduced = gradient
                return None
            return sharded.shared_out(gradient, self.gradient_predivide_factor, self.gradient_postdivide_factor)

    # ---- training

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Within, gradients are added up in full on each rank; they are shared out with those of the next backward pass
        outside.
        """
        units = list(self._fsdp_modules())
        outer = [each._is_synced for each in units]
        for each in units:
            each._is_synced = False
        try:
            yield
        finally:
            for each, was in zip(units, outer, strict=True):
                each._is_synced = was

    def set_gradient_divide_factors(self, pre: float, post: float, recursive: bool) -> None:
        """Sets what gradients are divided by before and after their sum; together, by default, the number of ranks.

        Args:
            recursive: of the modules within as well.
        """
        for each in self._fsdp_modules() if recursive else (self,):
            each.gradient_predivide_factor, each.gradient_postdivide_factor = pre, post

    @property
    def params_with_grad(self) -> list[nn.Parameter]:
        """The parts that have a gradient."""
        return [each for each in self.parameters() if each.grad is not None]

    @torch.no_grad()
    def clip_grad_norm_(
        self, max_norm: float | torch.Tensor, norm_type: float = 2.0, groups: Any = None
    ) -> torch.Tensor:
        """Scales the gradients of all ranks so that their norm together is at most `max_norm`. Call it on the outermost
        module, in place of torch's function of this name, on all ranks.

        Args:
            norm_type: of the norm; `inf` for the largest absolute value.
            groups: of ranks, see `xm.all_reduce`; by default the sharding groups.

        Returns:
            the norm before, a float32 scalar on xla.
        """
        groups = self.sharding_groups if groups is None else groups
        is_largest = float(norm_type) == float("inf")
        gradients = [each.grad.detach().float() for each in self.params_with_grad if each.grad is not None]
        norms = [torch.linalg.vector_norm(each, norm_type) for each in gradients]
        local = torch.stack(norms) if norms else torch.zeros(1, device="xla")
        with self._member.here():
            if is_largest:
                total = self._all_reduce(collectives.REDUCE_MAX, local.max(), groups)
            else:
                total = self._all_reduce(collectives.REDUCE_SUM, (local**norm_type).sum(), groups) ** (1 / norm_type)
        factor = torch.clamp(max_norm / (total + 1e-6), max=1.0)
        for each in self.params_with_grad:
            assert each.grad is not None
            each.grad.mul_(factor.to(each.grad.dtype))
        return total

    def _all_reduce(self, kind: str, value: torch.Tensor, groups: Any) -> torch.Tensor:
        reduce: Any = collectives.all_reduce if self._is_reduced_for_real else dummy_all_reduce
        return reduce(kind, value, groups=groups)

    # ---- looking

    def _fsdp_modules(self) -> Iterator[XlaFullyShardedDataParallel]:
        return (each for each in self.modules() if isinstance(each, XlaFullyShardedDataParallel))

    def assert_state(self, state: TrainingState | Sequence[TrainingState]) -> None:
        """Raises RuntimeError unless the module is in this state, or in one of these."""
        states = [state] if isinstance(state, TrainingState) else list(state)
        if self.training_state not in states:
            raise RuntimeError(f"expected the state {states}, got {self.training_state}")

    def extra_repr(self) -> str:
        """How it is cut."""
        return (
            f"world_size={self.world_size}, rank={self.rank}, reshard_after_forward={self.reshard_after_forward}, "
            f"compute_dtype={self.compute_dtype}, buffer_dtype={self.buffer_dtype}, "
            f"fp32_reduce_scatter={self._layout.fp32_reduce}, shard_param_on_dim_0={self._layout.on_dim_0}"
        )

    def get_original_names_and_sharded_parameters(self) -> list[tuple[str, nn.Parameter]]:
        """The parts, with the names that the parameters have without FSDP; flat ones with names of their own."""
        found = []
        for prefix, each in self.named_modules():
            if isinstance(each, XlaFullyShardedDataParallel):
                for unit in each._units:
                    name = f"{prefix}.{unit.sharded.name}" if prefix else unit.sharded.name
                    found.append((name.replace("_fsdp_wrapped_module.", ""), unit.sharded.shard))
        return found

    def get_shard_metadata(self) -> dict[str, Any]:
        """What `consolidate_sharded_state_dicts` has to know of the parts; save it with `state_dict()`."""
        shards: dict[str, Any] = {}
        flats: dict[str, Any] = {}
        buffers: dict[str, Any] = {}
        for prefix, each in self.named_modules():
            if not isinstance(each, XlaFullyShardedDataParallel):
                continue
            infos = shards[prefix] = {}
            for unit in each._units:
                own = f"_fsdp_wrapped_module.{unit.sharded.name}"
                infos[own] = {"_orig_name": own, "_orig_size": unit.sharded.size}
                if unit.metadata is not None:
                    flats[f"{prefix}.{own}" if prefix else own] = tuple(unit.metadata)
            for name, dtype in each._buffer_dtypes.items():
                buffers[f"{prefix}.{name}" if prefix else name] = {"_orig_dtype": dtype}
        return {
            "shard_info": shards,
            "flatten_info": flats,
            "buffer_info": buffers,
            "world_size": self.world_size,
            "rank": self.rank,
        }

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("_fsdp_wrapped_module"), name)

    def __getitem__(self, key: Any) -> Any:
        return self.module[key]  # type: ignore[index]


class _Place(NamedTuple):
    """Where a parameter is found."""

    module: nn.Module
    name: str


class _Unit(NamedTuple):
    """A sharded parameter, the places of what is in it, and what that is where it is flat."""

    sharded: ShardedParameter
    places: list[list[_Place]]
    metadata: FlatMetadata | None


class _Again(NamedTuple):
    """Stands for a view of a gathered parameter that autograd wanted to keep."""

    number: int
    shape: torch.Size
    stride: tuple[int, ...]
    offset: int


class _Gathered:
    """The parameters of one call.

    Args:
        owner: whose they are.
        after: what has to be there before they are gathered.
    """

    def __init__(self, owner: XlaFullyShardedDataParallel, after: Sequence[torch.Tensor]):
        self._owner, self._after = owner, after
        self._numbers: dict[int, int] = {}  # address of a whole's memory → number of the unit
        self._again: dict[int, torch.Tensor] = {}  # gathered again for the backward pass

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """Within, the module has its parameters in full."""
        units = self._owner._units
        wholes = [_Gather.apply(self, number, unit.sharded.shard) for number, unit in enumerate(units)]
        self._numbers = {storage_address_of(w.untyped_storage()): n for n, w in enumerate(wholes)}  # type: ignore[union-attr]
        removed: list[tuple[_Place, Any]] = []
        for unit, whole in zip(units, wholes, strict=True):
            for places, part in zip(unit.places, _parts(unit, whole), strict=True):
                for place in places:
                    removed.append((place, place.module._parameters.pop(place.name, None)))
                    place.module.__dict__[place.name] = part
        try:
            yield
        finally:
            for place, shard in removed:
                place.module.__dict__.pop(place.name, None)
                if shard is not None:
                    place.module._parameters[place.name] = shard
            self._numbers = {}

    def pack(self, tensor: torch.Tensor) -> Any:
        """What autograd keeps of a tensor."""
        number = None
        if tensor.device.type == "xla" and tensor.layout is torch.strided:
            number = self._numbers.get(storage_address_of(tensor.untyped_storage()))
        if number is None:
            return tensor
        return _Again(number, tensor.shape, tensor.stride(), int(tensor.storage_offset()))

    def unpack(self, kept: Any) -> torch.Tensor:
        """The tensor, in the backward pass."""
        if not isinstance(kept, _Again):
            return kept
        whole = self._again.get(kept.number)
        if whole is None:
            with torch.no_grad(), self._owner._member.here():
                whole = self._again[kept.number] = self._owner._units[kept.number].sharded.full(self._after)
        return whole.as_strided(kept.shape, kept.stride, kept.offset)

    def full(self, number: int) -> torch.Tensor:
        """A parameter in the forward pass."""
        return self._owner._units[number].sharded.full(self._after)

    def shared_out(self, number: int, gradient: torch.Tensor) -> torch.Tensor | None:
        """This rank's part of a parameter's gradient, after which nobody needs the parameter."""
        self._again.pop(number, None)
        if self._owner._barriers[1]:
            (gradient,) = torch.ops.lazy_runtime.optimization_barrier([gradient])
        return self._owner.shared_out(self._owner._units[number], gradient)


class _Gather(torch.autograd.Function):
    """The whole of a part; backwards the part of a whole."""

    @staticmethod
    def forward(ctx: Any, gathered: _Gathered, number: int, shard: torch.Tensor) -> torch.Tensor:
        ctx.gathered, ctx.number = gathered, number
        return gathered.full(number)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return None, None, ctx.gathered.shared_out(ctx.number, gradients[0])


def _parts(unit: _Unit, whole: Any) -> list[torch.Tensor]:
    if unit.metadata is None:
        return [whole]
    pieces = whole.split(unit.metadata.numels)
    return [piece.view(shape) for piece, shape in zip(pieces, unit.metadata.shapes, strict=True)]


def _own_modules(module: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    """The modules within that are not wrapped themselves, and itself."""
    yield prefix, module
    for name, child in module.named_children():
        if not isinstance(child, XlaFullyShardedDataParallel):
            yield from _own_modules(child, f"{prefix}.{name}" if prefix else name)


def _predivision(world: int) -> float:
    """A power of two near to √world, that divides it: neither the gradients nor their sums leave a narrow dtype."""
    factor = 1
    while world % factor == 0 and world / factor > factor:
        factor *= 2
    return float(factor)


def _fill(module: nn.Module, init: Callable[[nn.Module], None] | None) -> None:
    own = [each for _, each in _own_modules(module)]
    if not any(parameter.is_meta for each in own for parameter in each.parameters(recurse=False)):
        return
    if init is not None:
        init(module)
        return
    for each in own:
        if any(parameter.is_meta for parameter in each.parameters(recurse=False)):
            each.to_empty(device="xla", recurse=False)
            with torch.no_grad():
                each.reset_parameters()  # type: ignore[operator]


_PRIVATE = ("_shard_size_multiple", "_use_xla_patched_linear", "_debug")


def _refuse(module: nn.Module, options: dict[str, Any], private: dict[str, Any]) -> None:
    if isinstance(module, XlaFullyShardedDataParallel):
        raise ValueError("XlaFullyShardedDataParallel: the module is wrapped already; wrap those within it first")
    for name in private:
        if not name.startswith(_PRIVATE):
            raise TypeError(f"XlaFullyShardedDataParallel has no argument {name!r}")
    if options["sync_on_finalization"]:
        raise NotImplementedError(
            "sync_on_finalization: nothing here is told of the end of a backward pass; call torch_xla.sync() after it"
        )
    for name in ("compute_dtype", "buffer_dtype"):
        if options[name] is not None and options[name] not in FLOAT_DTYPES:
            raise ValueError(f"{name}: expected one of {FLOAT_DTYPES}, got {options[name]}")
    if options["sharding_groups"] is not None and None in (options["sharding_rank"], options["sharding_world_size"]):
        raise ValueError("sharding_groups: pass sharding_rank and sharding_world_size too, this rank's in its group")
