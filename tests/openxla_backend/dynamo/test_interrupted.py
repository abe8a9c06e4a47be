"""A compilation that an interrupt ends leaves none of torch's modes behind."""

from __future__ import annotations

import gc

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import openxla_backend.backend  # noqa: F401  its import prepares Dynamo


def leaves_modes():
    def backend(graph, inputs):
        FakeTensorMode().__enter__()
        torch.set_grad_enabled(False)
        torch._C._set_meta_in_tls_dispatch_include(True)
        keys = torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()
        guard = torch._C._ForceDispatchKeyGuard(*keys)  # goes with the frame
        guard.__enter__()
        raise KeyboardInterrupt

    return torch.compile(lambda x: x + 1, backend=backend)


def is_usual() -> bool:
    return (
        torch.is_grad_enabled()
        and type(torch.empty(2)) is torch.Tensor
        and not torch._C._meta_in_tls_dispatch_include()
    )


@pytest.mark.parametrize("within", [torch.enable_grad, torch.no_grad])
def test_the_thread_has_its_modes_back(within):
    with within():
        before = torch.is_grad_enabled()
        with pytest.raises(KeyboardInterrupt) as raised:
            leaves_modes()(torch.ones(2))
        assert torch.is_grad_enabled() is before
    assert is_usual()
    del raised
    gc.collect()
    assert is_usual()


def test_programs_compile_and_train_after_it():
    with pytest.raises(KeyboardInterrupt):
        leaves_modes()(torch.ones(2))
    x = torch.ones(3, requires_grad=True)
    torch.compile(lambda x: (x * 2).sum(), backend="openxla")(x).backward()
    assert x.grad is not None
    assert x.grad.tolist() == [2, 2, 2]
