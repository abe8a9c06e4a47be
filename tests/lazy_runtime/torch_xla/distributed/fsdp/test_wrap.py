"""Which modules policies choose."""

from __future__ import annotations

import functools

import pytest
from torch import nn

from lazy_runtime.torch_xla.distributed.fsdp import wrap


class Wrapper(nn.Module):
    def __init__(self, module, mark=""):
        super().__init__()
        self.module, self.mark = module, mark


def model():
    return nn.Sequential(nn.Linear(4, 4), nn.ModuleList([nn.Linear(4, 8)]), nn.MultiheadAttention(4, 2))


def chosen(policy, **options):
    made, count = wrap.recursive_wrap(model(), policy, Wrapper, (), (), **options)
    return [type(each.module).__name__ for each in made.modules() if isinstance(each, Wrapper)], count


def test_policies():
    by_class = functools.partial(wrap.transformer_auto_wrap_policy, transformer_layer_cls={nn.Linear})
    by_function = functools.partial(
        wrap.lambda_auto_wrap_policy, lambda_fn=lambda each: isinstance(each, nn.ModuleList)
    )
    by_size = functools.partial(wrap.size_based_auto_wrap_policy, min_num_params=30)
    every, count = chosen(wrap.always_wrap_policy)
    assert (every[0], count) == ("Sequential", sum(each.numel() for each in model().parameters()))
    assert chosen(by_class) == (["Linear", "Linear", "NonDynamicallyQuantizableLinear"], 80)
    assert chosen(by_function) == (["ModuleList"], 40)
    assert chosen(by_size) == (["Sequential", "Linear"], 140)
    assert chosen(wrap.always_wrap_policy, only_wrap_children=True)[0][0] == "Linear"


def test_torchs_policies():
    from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy

    policy = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={nn.ModuleList})
    assert chosen(policy) == (["ModuleList"], 40)


def test_overrides_and_what_is_ignored():
    given = model()
    given[0]._wrap_overrides = {"mark": "own"}
    made, count = wrap.recursive_wrap(
        given, wrap.always_wrap_policy, Wrapper, (given[1], given[2]), (), only_wrap_children=True, mark="all"
    )
    assert (made[0].mark, count) == ("own", 20)
    assert isinstance(made[1], nn.ModuleList)
    with pytest.raises(ValueError, match="is a Wrapper already"):
        wrap.recursive_wrap(made, wrap.always_wrap_policy, Wrapper, (), ())
    none, count = wrap.recursive_wrap(
        nn.Linear(2, 2), functools.partial(wrap.size_based_auto_wrap_policy, min_num_params=100), Wrapper, (), ()
    )
    assert (type(none), count) == (nn.Linear, 0)
