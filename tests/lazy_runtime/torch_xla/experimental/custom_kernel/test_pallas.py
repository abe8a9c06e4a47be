"""Pallas kernels of a user's own."""

from __future__ import annotations

import functools
import json

import jax
import jax.numpy as jnp
import pytest
import torch
from jax.experimental import pallas as pl

from lazy_runtime.torch_xla.experimental.custom_kernel import (
    convert_torch_dtype_to_jax,
    generate_ctx_need_grad,
    make_kernel_from_pallas,
    safe_empty_like,
    to_jax_shape_dtype_struct,
    trace_pallas,
)


def _kernel(x_ref, y_ref, o_ref, *, factor):
    o_ref[...] = x_ref[...] * factor + y_ref[...]


@functools.partial(jax.jit, static_argnames=["factor"])
def combine(x, y, factor=2.0):
    out = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return pl.pallas_call(functools.partial(_kernel, factor=factor), out_shape=out)(x, y)


def test_a_kernel_runs():
    kernel = make_kernel_from_pallas(combine, lambda x, y: [(x.shape, x.dtype)])
    x, y = torch.randn(8, 128), torch.randn(8, 128)
    for factor in (2.0, 3.0):
        found = kernel(x.to("xla"), y.to("xla"), factor=factor)
        torch.testing.assert_close(found.cpu(), x * factor + y)
    wrong = make_kernel_from_pallas(combine, lambda x, y: [(x.shape, torch.int32)])
    with pytest.raises(RuntimeError, match="make_kernel_from_pallas: expected"):
        wrong(x.to("xla"), y.to("xla"))


def test_what_a_tpu_is_told():
    x = torch.ones(8, 128, device="xla")
    payload, tensors = trace_pallas(combine, x, x, 2.0, static_argnums=(2,), use_cache=True)
    assert "custom_call_config" in json.loads(payload)
    assert len(tensors) == 2
    assert trace_pallas(combine, x, x, 2.0, static_argnums=(2,), use_cache=True)[0] is payload
    with pytest.raises(ValueError, match="calls no Pallas kernel"):
        trace_pallas(jnp.sin, x)


def test_helpers():
    assert convert_torch_dtype_to_jax(torch.bfloat16) == jnp.bfloat16
    with pytest.raises(ValueError, match="no counterpart in XLA"):
        convert_torch_dtype_to_jax(torch.qint8)
    struct = to_jax_shape_dtype_struct(torch.ones(2, 3, dtype=torch.int64))
    assert (struct.shape, struct.dtype) == ((2, 3), jnp.dtype("int64"))
    x = torch.ones(2, requires_grad=True)
    assert generate_ctx_need_grad(x, None, 1, x.detach()) == [True, False, False, False]
    assert safe_empty_like(None) is None
    assert safe_empty_like(x).shape == (2,)
