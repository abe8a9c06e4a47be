"""ZeRO's first stage: each rank keeps the optimizer's state for a part of each parameter, and updates that part.

The gradients' sums are shared out among the ranks, an optimizer of any class updates the parts, and the parts are put
together in the parameters again. Samyam Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion
Parameter Models" (2020).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional
from torch.optim import Optimizer

from .. import runtime as xr
from ..core import collectives

__all__ = ["ZeroRedundancyOptimizer"]

Groups = Sequence[Sequence[int]]


class _Pair(NamedTuple):
    """A parameter, and this rank's part of it: along the first dimension, as `optimizer_dtype`."""

    parameter: nn.Parameter
    shard: nn.Parameter


class ZeroRedundancyOptimizer(Optimizer):
    """An optimizer of a class whose state the ranks share. The mean over the ranks is the gradient.

    Args:
        params: parameters on xla, equal on all ranks, or dicts of them with options, as for any optimizer.
        optimizer_class: of the optimizer that each rank has for its parts. What it computes of whole parameters (a
            norm) it computes of parts.
        optimizer_dtype: of the parts and of the state; float32 by default.
        grad_clipping: scale the gradients so that their norm together is at most `max_norm`.
        max_norm: 1 by default.
        pin_layout: accepted for PyTorch/XLA's sake.
        sharding_groups: groups of ranks, each of which shares everything; by default one of all.
        grad_norm_groups: groups of ranks with different parameters, whose norms are summed as well.
        lazy_init: call `init_zero()` before the first step.
        bucket_cap_mb_all_gather, bucket_cap_mb_reduce_scatter: accepted for its sake: XLA itself puts collectives
            together.
        use_grad_acc_hook: add gradients up in `optimizer_dtype`, as soon as they are there.
        save_master_weights: `state_dict()` has the parts as well, which have more bits than the parameters.
        higher_cc_precision: sum gradients as `optimizer_dtype`.
        defaults: the optimizer's options.

    Attributes:
        base_optimizer: the optimizer of the parts.

    Raises:
        ValueError: a parameter is not on xla, or this rank is in no group.
    """

    def __init__(
        self,
        params: Any,
        optimizer_class: type[Optimizer],
        optimizer_dtype: torch.dtype | None = None,
        grad_clipping: bool = True,
        max_norm: float | None = None,
        pin_layout: bool = True,
        sharding_groups: Groups | None = None,
        grad_norm_groups: Groups | None = None,
        lazy_init: bool = False,
        bucket_cap_mb_all_gather: int = 0,
        bucket_cap_mb_reduce_scatter: int = 0,
        use_grad_acc_hook: bool = False,
        save_master_weights: bool = False,
        higher_cc_precision: bool = False,
        **defaults: Any,
    ):
        super().__init__(params, defaults)
        self.optimizer_class, self.defaults = optimizer_class, defaults
        self.optimizer_dtype = torch.float32 if optimizer_dtype is None else optimizer_dtype
        self.grad_clipping, self.max_norm = grad_clipping, 1.0 if max_norm is None else max_norm
        self.use_grad_acc_hook, self.save_master_weights = use_grad_acc_hook, save_master_weights
        self.higher_cc_precision = higher_cc_precision
        self._sharding_groups: Groups = [list(range(xr.world_size()))] if sharding_groups is None else sharding_groups
        self._grad_norm_groups = grad_norm_groups
        self._grad_norm: torch.Tensor | None = None
        self._hooks: list[Any] = []
        self._added_up: dict[nn.Parameter, torch.Tensor] = {}
        self.base_optimizer: Any = None
        if not lazy_init:
            self.init_zero()

    @property
    def inited(self) -> bool:
        """Whether the parameters have been shared out."""
        return self.base_optimizer is not None

    def init_zero(self) -> None:
        """Shares the parameters out and makes the optimizer of the parts, anew if there is one."""
        self.remove_hooks()
        rank = xr.global_ordinal()
        own = [list(group) for group in self._sharding_groups if rank in group]
        if not own:
            raise ValueError(f"sharding_groups: this rank, {rank}, is in none of {self._sharding_groups}")
        self.local_world_size, self.local_rank = len(own[0]), own[0].index(rank)
        groups = []
        for group in self.param_groups:
            shards = [self._shard(parameter) for parameter in group["params"]]
            groups.append({**group, "params": shards})
        self.base_optimizer = self.optimizer_class(groups, **self.defaults)
        _copy_options(self.param_groups, self.base_optimizer.param_groups)
        if self.use_grad_acc_hook:
            for pair in self._pairs():
                self._hooks.append(pair.parameter.register_post_accumulate_grad_hook(self._add_up))

    def _shard(self, parameter: nn.Parameter) -> nn.Parameter:
        if parameter.device.type != "xla":
            raise ValueError(f"ZeroRedundancyOptimizer: expected parameters on xla, got one on {parameter.device}")
        part = self._padded(parameter.detach()).chunk(self.local_world_size)[self.local_rank]
        return nn.Parameter(part.to(self.optimizer_dtype, copy=True), requires_grad=parameter.requires_grad)

    def _padded(self, tensor: torch.Tensor) -> torch.Tensor:
        rows = tensor if tensor.dim() else tensor.reshape(1)
        missing = -rows.shape[0] % self.local_world_size
        return functional.pad(rows, [0, 0] * (rows.dim() - 1) + [0, missing]) if missing else rows

    def _pairs(self) -> Iterator[_Pair]:
        for group, of_shards in zip(self.param_groups, self.base_optimizer.param_groups, strict=True):
            for parameter, shard in zip(group["params"], of_shards["params"], strict=True):
                yield _Pair(parameter, shard)

    def _add_up(self, parameter: torch.Tensor) -> None:
        """Takes a gradient as soon as it is there."""
        known: Any = self._added_up.get(parameter)  # type: ignore[call-overload]
        new = parameter.grad.to(self.optimizer_dtype)  # type: ignore[union-attr]
        self._added_up[parameter] = new if known is None else known + new  # type: ignore[index]
        parameter.grad = None

    def remove_hooks(self) -> None:
        """Has gradients stay where autograd puts them (`use_grad_acc_hook`)."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    @property
    def grad_norm(self) -> torch.Tensor | None:
        """The norm of all gradients before the latest clipping, a scalar on xla; None before the first step."""
        return self._grad_norm

    @property
    def sharding_groups(self) -> Groups:
        """The groups of ranks that share everything."""
        return self._sharding_groups

    @sharding_groups.setter
    def sharding_groups(self, new_sharding_groups: Groups) -> None:
        if self.inited:
            raise RuntimeError("sharding_groups: the parameters are shared out already; pass lazy_init=True")
        self._sharding_groups = new_sharding_groups

    # ---- a step

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None, **kwargs: Any) -> Any:  # type: ignore[override]
        """Updates the parameters of all ranks.

        Args:
            closure: computes the loss and its gradients, and gives the loss.
            kwargs: for the optimizer of the parts; `sharding_scheme`, a list of dicts with `scale_factor`,
                `sharding_group` and `group_size`, says in which steps gradients are shared out, instead of one.

        Returns:
            what the closure gave.

        Raises:
            RuntimeError: `init_zero` has not been called.
        """
        if not self.inited:
            raise RuntimeError("ZeroRedundancyOptimizer: call init_zero() first (lazy_init)")
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        scheme = kwargs.pop("sharding_scheme", None)
        self._share_out(scheme)
        if self.grad_clipping:
            self._clip()
        self.base_optimizer.step(closure=None, **kwargs)
        self.base_optimizer.zero_grad(set_to_none=True)
        self.allgather_weights_and_update_full_parameter(scheme)
        _copy_options(self.base_optimizer.param_groups, self.param_groups)
        return loss

    def _gradient(self, parameter: nn.Parameter) -> torch.Tensor | None:
        return self._added_up.get(parameter) if self.use_grad_acc_hook else parameter.grad

    def _scheme(self, given: Sequence[dict[str, Any]] | None) -> Sequence[dict[str, Any]]:
        alone = {"scale_factor": 1.0, "sharding_group": self._sharding_groups, "group_size": self.local_world_size}
        return [alone] if given is None else given

    def _share_out(self, scheme: Sequence[dict[str, Any]] | None) -> None:
        _copy_options(self.param_groups, self.base_optimizer.param_groups)
        for parameter, shard in self._pairs():
            gradient = self._gradient(parameter)
            if gradient is None:
                continue
            part = self._padded(gradient)
            if self.higher_cc_precision:
                part = part.to(self.optimizer_dtype)
            for step in self._scheme(scheme):
                scale, size = step["scale_factor"] / step["group_size"], step["group_size"]
                part = collectives.reduce_scatter(collectives.REDUCE_SUM, part, scale, 0, size, step["sharding_group"])
            shard.grad = part.to(self.optimizer_dtype)

    def _clip(self) -> None:
        gradients = [shard.grad for _, shard in self._pairs() if shard.grad is not None]
        if not gradients:
            return
        total: Any = torch.stack([(each * each).sum() for each in gradients]).sum()
        for groups in (self._sharding_groups, self._grad_norm_groups):
            if groups is not None:
                total = collectives.all_reduce(collectives.REDUCE_SUM, total, groups=groups)
        norm = self._grad_norm = total.sqrt()
        factor = torch.clamp(self.max_norm / (norm + 1e-6), max=1.0)
        for each in gradients:
            each.mul_(factor)

    @torch.no_grad()
    def allgather_weights_and_update_full_parameter(
        self, sharding_scheme: Sequence[dict[str, Any]] | None = None
    ) -> None:
        """Puts the parts together in the parameters that have gradients.

        Args:
            sharding_scheme: see `step`.
        """
        self._put_together(
            [pair for pair in self._pairs() if self._gradient(pair.parameter) is not None], sharding_scheme
        )

    def _put_together(self, pairs: Sequence[_Pair], sharding_scheme: Sequence[dict[str, Any]] | None = None) -> None:
        for parameter, shard in pairs:
            whole = shard.detach().to(parameter.dtype)
            for step in reversed(self._scheme(sharding_scheme)):
                whole = collectives.all_gather(whole, 0, groups=step["sharding_group"])
            parameter.copy_(whole[: parameter.shape[0]] if parameter.dim() else whole[0])

    def zero_grad(self, set_to_none: bool = False) -> None:
        """Forgets the gradients, those that were added up among them."""
        super().zero_grad(set_to_none=set_to_none)
        self._added_up.clear()

    # ---- states

    def get_shape_info(self) -> dict[int, torch.Size]:
        """The shapes of the parameters, by their numbers in `state_dict()`."""
        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        return {number: parameter.shape for number, parameter in enumerate(parameters)}

    def state_dict(self) -> dict[str, Any]:
        """An optimizer's, with this rank's parts: `base_state`, the state of the parts by the parameters' numbers,
        `shape_info`, the parameters' shapes, and, with `save_master_weights`, `sharded_master_weights`, the parts.
        """
        found = super().state_dict()
        found["base_state"] = self.base_optimizer.state_dict()["state"]
        found["shape_info"] = self.get_shape_info()
        if self.save_master_weights:
            found["sharded_master_weights"] = {n: pair.shard.data for n, pair in enumerate(self._pairs())}
        return found

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on from what `state_dict` gave on the same rank of as many. With `sharded_master_weights` the parameters
        are what these are, together.
        """
        given = copy.copy(state_dict)
        base_state = given.pop("base_state")
        given.pop("shape_info", None)
        master_weights = given.pop("sharded_master_weights", None)
        super().load_state_dict(given)
        self.init_zero()
        of_base = self.base_optimizer.state_dict()
        of_base["state"] = base_state
        self.base_optimizer.load_state_dict(of_base)
        if master_weights is not None:
            with torch.no_grad():
                for number, pair in enumerate(self._pairs()):
                    pair.shard.copy_(master_weights[number])
                self._put_together(list(self._pairs()))


def _copy_options(source: Sequence[dict[str, Any]], target: Sequence[dict[str, Any]]) -> None:
    """The learning rates and their like of one optimizer's groups to another's."""
    for from_, to in zip(source, target, strict=True):
        to.update({name: value for name, value in from_.items() if name != "params"})
