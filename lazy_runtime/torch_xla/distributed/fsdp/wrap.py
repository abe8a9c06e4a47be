"""Which modules within a module are wrapped: policies, which are asked of each one, and the walk that asks them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from typing import Any

from torch import nn

__all__ = [
    "always_wrap_policy",
    "lambda_auto_wrap_policy",
    "recursive_wrap",
    "size_based_auto_wrap_policy",
    "transformer_auto_wrap_policy",
]

#: `policy(module=..., recurse=..., unwrapped_params=...)`: with `recurse` whether to look into the module, else whether
#: to wrap it. `unwrapped_params` (torch's: `nonwrapped_numel`) are elements of parameters that no module within has.
Policy = Callable[..., bool]

#: Where a module has options of its own for what wraps it.
_OVERRIDES = "_wrap_overrides"

#: What `size_based_auto_wrap_policy` does not look into, and what it does not wrap, by default.
_LEAVES: tuple[type[nn.Module], ...] = (nn.MultiheadAttention,)
_NOT_WRAPPED: tuple[type[nn.Module], ...] = (nn.ModuleList, nn.ModuleDict)


def ask(policy: Policy, module: nn.Module, recurse: bool, count: int) -> bool:
    """Asks a policy of this module or of `torch.distributed.fsdp.wrap`, which calls the count by another name.

    Args:
        count: elements of parameters that are not wrapped yet.
    """
    names = inspect.signature(policy).parameters
    name = "nonwrapped_numel" if "nonwrapped_numel" in names else "unwrapped_params"
    return policy(module=module, recurse=recurse, **{name: count})


def always_wrap_policy(*args: Any, **kwargs: Any) -> bool:
    """Wraps every module."""
    return True


def lambda_auto_wrap_policy(
    module: nn.Module, recurse: bool, unwrapped_params: int, lambda_fn: Callable[[nn.Module], bool]
) -> bool:
    """Wraps the modules of which `lambda_fn` is true."""
    return recurse or lambda_fn(module)


def transformer_auto_wrap_policy(
    module: nn.Module, recurse: bool, unwrapped_params: int, transformer_layer_cls: Collection[type[nn.Module]]
) -> bool:
    """Wraps the modules of these classes."""
    return recurse or isinstance(module, tuple(transformer_layer_cls))


def size_based_auto_wrap_policy(
    module: nn.Module,
    recurse: bool,
    unwrapped_params: int,
    min_num_params: int = 100_000_000,
    force_leaf_modules: Collection[type[nn.Module]] | None = None,
    exclude_wrap_modules: Collection[type[nn.Module]] | None = None,
) -> bool:
    """Wraps the modules with so many elements of parameters that are not wrapped yet.

    Args:
        min_num_params: how many.
        force_leaf_modules: classes that are not looked into; attention by default.
        exclude_wrap_modules: classes that are not wrapped themselves; lists and dicts of modules by default.
    """
    leaves = _LEAVES if force_leaf_modules is None else tuple(force_leaf_modules)
    excluded = _NOT_WRAPPED if exclude_wrap_modules is None else tuple(exclude_wrap_modules)
    return unwrapped_params >= min_num_params and not isinstance(module, leaves if recurse else excluded)


def recursive_wrap(
    module: nn.Module,
    auto_wrap_policy: Policy,
    wrapper_cls: Callable[..., nn.Module],
    ignored_modules: Collection[nn.Module],
    ignored_params: Collection[nn.Parameter],
    only_wrap_children: bool = False,
    **kwargs: Any,
) -> tuple[nn.Module, int]:
    """Wraps the modules that a policy asks for, the innermost first.

    Args:
        module: where to begin.
        wrapper_cls: `wrapper_cls(module, **kwargs)`; options in a module's `_wrap_overrides` come before `kwargs`.
        ignored_modules: are neither looked into nor wrapped.
        ignored_params: do not count.
        only_wrap_children: `module` itself is not wrapped.

    Returns:
        the module, or what wraps it, and how many elements its wrapped parameters have.

    Raises:
        ValueError: a module within is wrapped already.
    """
    if isinstance(wrapper_cls, type) and any(isinstance(each, wrapper_cls) for each in module.modules()):
        raise ValueError(f"recursive_wrap: a module within {type(module).__name__} is a {wrapper_cls.__name__} already")
    ignored = {id(each) for each in ignored_params}
    total = sum(each.numel() for each in module.parameters() if id(each) not in ignored)
    if not ask(auto_wrap_policy, module, True, total):
        return module, 0
    wrapped = 0
    for name, child in list(module.named_children()):
        if any(child is each for each in ignored_modules):
            continue
        made, count = recursive_wrap(child, auto_wrap_policy, wrapper_cls, ignored_modules, ignored_params, **kwargs)
        setattr(module, name, made)
        wrapped += count
    if only_wrap_children or not ask(auto_wrap_policy, module, False, total - wrapped):
        return module, wrapped
    return wrapper_cls(module, **{**kwargs, **module.__dict__.get(_OVERRIDES, {})}), total
