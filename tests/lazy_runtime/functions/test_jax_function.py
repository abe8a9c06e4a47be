"""jax functions on xla tensors."""

from __future__ import annotations

import gc
import weakref

import jax.numpy as jnp
import pytest
import torch

from lazy_runtime.functions import jax_function


def test_gradients_are_those_of_jax():
    a, b = torch.randn(3, 4), torch.randn(4, 2)
    on_xla = [x.to("xla").requires_grad_() for x in (a, b)]

    def function(a, b):
        return [jnp.sin(a @ b), jnp.sum(a, dtype=jnp.float32), (a > 0).astype(jnp.int32)]

    product, total, positive = jax_function.call_with_gradients(function, on_xla, function, "function")
    (product.sum() + 3 * total).backward()
    expected = [x.clone().requires_grad_() for x in (a, b)]
    (torch.sin(expected[0] @ expected[1]).sum() + 3 * expected[0].sum()).backward()
    torch.testing.assert_close(product.cpu(), torch.sin(a @ b))
    assert torch.equal(positive.cpu(), (a > 0).int())
    for mine, theirs in zip(on_xla, expected, strict=True):
        torch.testing.assert_close(mine.grad.cpu(), theirs.grad)


def test_it_is_traced_once_for_each_look():
    traced = []

    def function(x):
        traced.append(x.shape)
        return [x * 2]

    for shape in ((2,), (2,), (3,), (2,)):
        (made,) = jax_function.call(function, [torch.ones(shape, device="xla")], function, "function")
        assert made.tolist() == [2.0] * shape[0]
    assert traced == [(2,), (3,)]


def test_functions_of_a_loop_do_not_stay():
    """The gradients of one that was forgotten are right: what it noted is its caller's."""

    class Weight:
        pass

    def square(weight):
        return lambda x: [x * x + 0 * weight.number]

    held = []
    x = torch.ones(3, device="xla", requires_grad=True)
    (first,) = jax_function.call_with_gradients(lambda x: [x * x], [x], "x * x", "square")
    for _ in range(jax_function.REMEMBERED + 10):
        weight = Weight()
        weight.number = 1
        held.append(weakref.ref(weight))
        function = square(weight)
        jax_function._traced(jax_function._Keyed(function, function, "square"), jax_function._looks([x]), "cpu")
    del weight, function
    gc.collect()
    assert sum(each() is not None for each in held) <= jax_function.REMEMBERED
    first.sum().backward()
    assert x.grad.tolist() == [2, 2, 2]


def test_a_dtype_that_torch_lacks():
    with pytest.raises(TypeError, match="four gives int4, which torch does not have"):
        jax_function.call(lambda x: [x.astype(jnp.int4)], [torch.ones(2, device="xla")], "int4", "four")


@pytest.mark.parametrize("device", ["cpu", "xla"])
def test_gradients_of_gradients(device):
    values = [torch.randn(3), torch.randn(3)]

    def function(x, y):
        return [jnp.sin(x) * y, (x > 0).astype(jnp.int32), x**3]

    def loss(of, x, y):
        product, _, cube = of(x, y)
        return product.sum() + (cube * y).sum()

    def second(of, x, y):
        first = torch.autograd.grad(loss(of, x, y), (x, y), create_graph=True)
        return torch.autograd.grad((first[0] * first[1]).sum(), (x, y))

    found = second(
        lambda x, y: jax_function.call_with_gradients(function, [x, y], function, "function"),
        *[x.to(device).requires_grad_() for x in values],
    )
    expected = second(lambda x, y: (x.sin() * y, None, x**3), *[x.clone().requires_grad_() for x in values])
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine.cpu(), theirs)
