"""jax functions as operators: recorded lazily, in eager mode, in compiled functions and in whole training steps."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import pytest
import torch

import lazy_runtime
import lazy_runtime.jax
from lazy_runtime.common import metrics
from lazy_runtime.torch_xla.experimental import eager_mode_context


def rotated(x, angle, *, scale=1.0):
    """Points (n, 2) turned by an angle, and how many have a positive abscissa."""
    turn = jnp.array([[jnp.cos(angle), -jnp.sin(angle)], [jnp.sin(angle), jnp.cos(angle)]])
    return {"points": scale * x @ turn, "right": (x[:, 0] > 0).sum(dtype=jnp.int32)}


def rotated_by_torch(x, angle, *, scale=1.0):
    turn = torch.stack([torch.stack([angle.cos(), -angle.sin()]), torch.stack([angle.sin(), angle.cos()])])
    return {"points": scale * x @ turn, "right": (x[:, 0] > 0).sum(dtype=torch.int32)}


def loss(of, x, angle):
    found = of(x * 2, angle, scale=0.5)
    return (found["points"] ** 3).sum() * found["right"]


by_jax = functools.partial(lazy_runtime.jax.call, rotated)


def arguments(device):
    torch.manual_seed(0)
    return [torch.randn(5, 2).to(device).requires_grad_(), torch.tensor(0.3).to(device).requires_grad_()]


def expected():
    given = arguments("cpu")
    found = loss(rotated_by_torch, *given)
    found.backward()
    return found.detach(), [each.grad for each in given]


def check(function, given):
    value, gradients = expected()
    found = function(*given)
    found.backward()
    torch.testing.assert_close(found.detach().cpu(), value)
    for each, gradient in zip(given, gradients, strict=True):
        assert each.grad.device == each.device
        torch.testing.assert_close(each.grad.cpu(), gradient)


@pytest.mark.parametrize("eager", [False, True], ids=["lazy", "eager mode"])
@pytest.mark.parametrize("device", ["xla", "cpu"])
def test_values_and_gradients(device, eager):
    with eager_mode_context(eager):
        check(functools.partial(loss, by_jax), arguments(device))


def test_it_is_an_operator_of_the_graph():
    x, angle = (each.detach() for each in arguments("xla"))
    lazy_runtime.sync()
    metrics.clear()
    found = by_jax(x + 1, angle)["points"].cos()
    assert metrics.value("ExecuteComputation") == 0
    found.cpu()
    assert metrics.value("ExecuteComputation") == 1


def closure(power):
    return lambda x: x**power


cube = closure(3)
KINDS = {
    "function": jnp.square,
    "closure": cube,
    "jitted": jax.jit(lambda x: jnp.sin(x) * x),
    "partial": functools.partial(jnp.clip, min=-0.5, max=0.5),
    "method": jnp.array([1.0, 2.0, 3.0], jnp.float32).__mul__,
}


@pytest.mark.parametrize("device", ["cpu", "xla"])
@pytest.mark.parametrize("kind", KINDS)
def test_one_graph_of_dynamo(kind, device):
    function = KINDS[kind]
    torch.compiler.reset()  # each kind is another graph of one function, and Dynamo makes eight

    def of_tensors(x):
        return lazy_runtime.jax.call(function, x + 1).sum(), lazy_runtime.jax.call(lambda x: x - 1, x)

    x = torch.tensor([-0.5, 0.25, 2.0])
    given = [x.clone().to(device).requires_grad_() for _ in range(2)]
    results = []
    for each, called in zip(
        given, (torch.compile(of_tensors, backend="openxla", fullgraph=True), of_tensors), strict=True
    ):
        total, less = called(each)
        (total + less.prod()).backward()
        results.append((total.detach().cpu(), less.detach().cpu(), each.grad.cpu()))
    torch.testing.assert_close(*results)


def test_another_backend_of_dynamo():
    compiled = torch.compile(functools.partial(loss, by_jax), backend="aot_eager", fullgraph=True)
    check(compiled, arguments("xla"))


def test_a_function_that_changes_is_another_graph():
    def of_tensors(function, x):
        return lazy_runtime.jax.call(function, x)

    compiled = torch.compile(of_tensors, backend="openxla", fullgraph=True)
    x = torch.tensor([1.0, 4.0], device="xla")
    assert compiled(jnp.sqrt, x).tolist() == [1, 2]
    assert compiled(jnp.negative, x).tolist() == [-1, -4]
    assert compiled(closure(2), x).tolist() == [1, 16]
    assert compiled(closure(0), x).tolist() == [1, 1]


class Swish(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.outer = torch.nn.Linear(4, 8), torch.nn.Linear(8, 1)
        self.slope = torch.nn.Parameter(torch.tensor(1.5))

    def forward(self, x):
        return self.outer(lazy_runtime.jax.call(swish, self.inner(x), self.slope))


def swish(x, slope):
    return x * jax.nn.sigmoid(slope * x)


class SwishByTorch(Swish):
    def forward(self, x):
        y = self.inner(x)
        return self.outer(y * torch.sigmoid(self.slope * y))


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")
def test_a_compiled_training_step_is_one_execution():
    losses = {}
    for kind in (Swish, SwishByTorch):
        torch.manual_seed(0)
        model, x, y = kind(), torch.randn(16, 4), torch.randn(16, 1)
        model, x, y = model.to("xla"), x.to("xla"), y.to("xla")
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)

        def step(x, y, model=model, optimizer=optimizer):
            optimizer.zero_grad()
            found = torch.nn.functional.mse_loss(model(x), y)
            found.backward()
            optimizer.step()
            return found.detach()

        compiled = torch.compile(step, backend="openxla")
        losses[kind] = [compiled(x, y) for _ in range(3)]
        lazy_runtime.sync()
        metrics.clear()
        losses[kind] += [compiled(x, y) for _ in range(4)]
        assert metrics.value("ExecuteComputation") == 4
    torch.testing.assert_close(*(torch.stack(each).cpu() for each in losses.values()))


def test_what_the_user_says_of_gradients_holds():
    @jax.custom_vjp
    def reversed_gradient(x):
        return x * 1.0

    reversed_gradient.defvjp(lambda x: (x * 1.0, None), lambda _, g: (-g,))
    x = torch.ones(3, device="xla", requires_grad=True)
    lazy_runtime.jax.call(reversed_gradient, x).sum().backward()
    assert x.grad.tolist() == [-1, -1, -1]


def test_a_decorator():
    @lazy_runtime.jax.operator
    def softclip(x, *, limit):
        """Smoothly at most the limit."""
        return limit * jnp.tanh(x / limit)

    assert (softclip.__name__, softclip.__doc__) == ("softclip", "Smoothly at most the limit.")
    x = torch.randn(4)
    torch.testing.assert_close(softclip(x.to("xla"), limit=2.0).cpu(), 2 * torch.tanh(x / 2))


def test_under_autocast_arrays_are_what_the_tensors_are():
    layer = torch.nn.Linear(4, 3).to("xla")
    x = torch.randn(2, 4, device="xla")
    seen = []

    def noted(y, x):
        seen.extend([y.dtype, x.dtype])
        return y.astype(x.dtype)

    with torch.autocast("xla", torch.bfloat16):
        found = lazy_runtime.jax.call(noted, layer(x), x)
    assert seen == [jnp.bfloat16, jnp.float32]
    found.sum().backward()
    assert layer.weight.grad.dtype == torch.float32


def test_ranks_of_one_process_shard():
    """shard_map stands inside of a function as anything else does."""
    mesh = jax.sharding.Mesh(jax.devices()[:1], "x")
    spec = jax.sharding.PartitionSpec("x")

    def total(x):
        return jax.shard_map(lambda x: jax.lax.psum(x, "x"), mesh=mesh, in_specs=spec, out_specs=spec)(x)

    assert lazy_runtime.jax.call(total, torch.ones(4, device="xla")).tolist() == [1] * 4
