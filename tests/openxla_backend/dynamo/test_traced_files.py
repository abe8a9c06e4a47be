"""What Dynamo is told of these packages' files outlasts a process group, for which torch forgets what it knew."""

from __future__ import annotations

import functools

import pytest
import torch
from torch._dynamo import trace_rules

from lazy_runtime.dispatcher import module_moves
from lazy_runtime.torch_xla.distributed.spmd import mesh
from tests.openxla_backend.trained import both, run, zero_grad_last


@pytest.fixture
def after_a_process_group():
    torch.compile(torch.sin, backend="openxla")(torch.ones(2))
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    torch.distributed.destroy_process_group()
    torch._dynamo.reset()


def test_a_step_is_whole(after_a_process_group):
    torch.set_default_dtype(torch.float64)
    try:
        eager, compiled = both(zero_grad_last, functools.partial(torch.optim.AdamW, lr=0.01))
        run(eager, compiled)
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("module", [module_moves, mesh])
def test_files_are_traced(module, after_a_process_group):
    assert not trace_rules.check_file(module.__file__, is_inlined_call=True).skipped
    assert trace_rules.check_file(module.__file__).skipped
