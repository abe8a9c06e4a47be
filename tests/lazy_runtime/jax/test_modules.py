"""Modules as pure functions under jax's transformations."""

from __future__ import annotations

import copy
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import lazy_runtime.jax
from benchmarks.models.model import transformers


def network():
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, padding=1),
        torch.nn.BatchNorm2d(8),
        torch.nn.GELU(),
        torch.nn.MaxPool2d(2),
        torch.nn.Flatten(),
        torch.nn.Linear(8 * 16, 5),
    )


@pytest.fixture
def images():
    torch.manual_seed(1)
    return torch.randn(4, 3, 8, 8)


def arrays(tensors):
    return jnp.asarray(tensors.detach().numpy())


def close(found, expected):
    torch.testing.assert_close(torch.from_numpy(np.array(found)), expected.detach())


def loss_of(f):
    def loss(params, x):
        out, state = f(params, x, state=f.state)
        return (out**2).mean(), state

    return loss


@pytest.mark.parametrize("device", ["cpu", "xla"])
def test_values_and_gradients(images, device):
    module = network()
    params, f = lazy_runtime.jax.function(copy.deepcopy(module).to(device))
    expected = module(images).square().mean()
    expected.backward()
    (found, state), gradients = jax.jit(jax.value_and_grad(loss_of(f), has_aux=True))(params, arrays(images))
    close(found, expected)
    assert gradients.keys() == dict(module.named_parameters()).keys()
    for name, parameter in module.named_parameters():
        close(gradients[name], parameter.grad)
    close(state["1.running_mean"], module[1].running_mean)
    close(state["1.running_var"], module[1].running_var)
    assert int(state["1.num_batches_tracked"]) == 1
    assert int(f.state["1.num_batches_tracked"]) == 0


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # by torch.func.jvp
def test_transformations(images):
    module = network().eval()
    params, f = lazy_runtime.jax.function(module)
    x = arrays(images)
    of_params = functools.partial(f, params)
    expected = module(images)
    close(of_params(x), expected)
    close(jax.vmap(lambda image: of_params(image[None])[0])(x), expected)
    _, tangent = jax.jvp(of_params, (x,), (x,))
    _, expected_tangent = torch.func.jvp(module, (images,), (images,))
    close(tangent, expected_tangent)
    total, each = jax.lax.scan(lambda sum_, image: (sum_ + of_params(image[None])[0], None), jnp.zeros(5), x)
    close(total, expected.sum(0))
    assert each is None
    mesh = jax.sharding.Mesh(jax.devices()[:1], "x")
    spec = jax.sharding.PartitionSpec("x")
    close(jax.jit(jax.shard_map(of_params, mesh=mesh, in_specs=spec, out_specs=spec))(x), expected)
    second = jax.hessian(lambda bias: (f({**params, "5.bias": bias}, x) ** 2).sum())(params["5.bias"])
    close(second, 8 * torch.eye(5))


def test_what_is_exported_calls_no_kernel_of_torchs(images):
    params, f = lazy_runtime.jax.function(network().eval())
    exported = jax.export.export(jax.jit(f), platforms=["cpu", "tpu", "cuda"])(params, arrays(images))
    assert "custom_call" not in exported.mlir_module()
    close(exported.call(params, arrays(images)), network().eval()(images))


def test_explicit_axes_are_refused_and_others_not():
    params, f = lazy_runtime.jax.function(torch.nn.Linear(3, 2))
    kinds = jax.sharding.AxisType
    for kind in (kinds.Auto, kinds.Explicit):
        mesh = jax.make_mesh((1,), ("data",), axis_types=(kind,))
        x = jax.device_put(jnp.ones((4, 3)), jax.NamedSharding(mesh, jax.P("data")))
        if kind == kinds.Auto:
            assert jax.jit(f)(params, x).shape == (4, 2)
            continue
        with pytest.raises(NotImplementedError, match="Linear gets an array over the explicit axes data of a mesh"):
            jax.jit(f)(params, x)


def test_an_export_for_symbolic_sizes():
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    model = transformers().BertModel(transformers().BertConfig(**sizes, vocab_size=100)).eval()
    params, f = lazy_runtime.jax.function(model)
    structs = jax.tree.map(lambda each: jax.ShapeDtypeStruct(each.shape, each.dtype), params)
    struct = jax.ShapeDtypeStruct(jax.export.symbolic_shape("b, s", constraints=["s <= 512"]), jnp.int32)
    call = jax.jit(lambda params, ids, mask: f(params, input_ids=ids, attention_mask=mask))
    exported = jax.export.export(call, platforms=["cpu", "tpu", "cuda"])(structs, struct, struct)
    for shape in ((1, 1), (2, 9), (3, 16)):
        ids, mask = torch.randint(0, 100, shape), torch.ones(shape, dtype=torch.int64)
        mask[-1, shape[1] // 2 + 1 :] = 0
        found = exported.call(params, jnp.asarray(ids.numpy(), jnp.int32), jnp.asarray(mask.numpy(), jnp.int32))
        for name, expected in model(ids, mask).items():
            close(found[name], expected)


def test_it_is_traced_once_for_each_look(images):
    calls = []

    class Counted(torch.nn.Module):
        def forward(self, x, *, factor=1):
            calls.append(x.shape)
            return x * factor

    params, f = lazy_runtime.jax.function(Counted())
    x = arrays(images)
    for _ in range(2):
        close(f(params, x), images)
        close(f(params, x, factor=2), 2 * images)
        close(f(params, x[:1]), images[:1])
    assert len(calls) == 3


def test_dropout_takes_a_key():
    params, f = lazy_runtime.jax.function(torch.nn.Dropout(0.25).train())
    x = jnp.ones(4096)
    with pytest.raises(ValueError, match=r"Dropout draws random numbers, .*: call it with key=jax\.random\.key\(0\)"):
        f(params, x)
    call = jax.jit(lambda key: f(params, x, key=key))
    first, second, again = (call(jax.random.key(seed)) for seed in (0, 1, 0))
    assert (first == again).all()
    assert (first != second).any()
    assert set(first.tolist()) == {0.0, np.float32(1 / 0.75)}
    assert 0.7 < float((first > 0).mean()) < 0.8


def test_training_by_jax_is_training_by_torch(images):
    module = network()
    params, f = lazy_runtime.jax.function(module)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)

    @jax.jit
    def step(params, state, x):
        def loss(params):
            out, new = f(params, x, state=state)
            return (out**2).mean(), new

        (value, state), gradients = jax.value_and_grad(loss, has_aux=True)(params)
        return jax.tree.map(lambda p, g: p - 0.01 * g, params, gradients), state, value

    found, expected, state = [], [], f.state
    for _ in range(5):
        params, state, value = step(params, state, arrays(images))
        found.append(float(value))
        optimizer.zero_grad()
        loss = module(images).square().mean()
        loss.backward()
        optimizer.step()
        expected.append(loss.item())
    assert found == pytest.approx(expected, rel=1e-4)
    assert found[-1] < found[0]


def test_a_model_of_transformers():
    library = transformers()
    torch.manual_seed(0)
    config = library.LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2,
    )  # fmt: skip
    model = library.LlamaForCausalLM(config)
    tokens = torch.randint(0, 64, (2, 7))
    params, f = lazy_runtime.jax.function(model)
    x = arrays(tokens)
    loss, gradients = jax.jit(
        jax.value_and_grad(lambda params: f(params, input_ids=x, labels=x, use_cache=False)["loss"])
    )(params)
    expected = model(input_ids=tokens, labels=tokens).loss
    expected.backward()
    close(loss, expected)
    for name, parameter in model.named_parameters():
        close(gradients[name], parameter.grad)
    with pytest.raises(TypeError, match=r"LlamaForCausalLM returns DynamicCache as its result\['past_key_values'\]"):
        f(params, input_ids=x)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda f, p, x: f({}, x), ValueError, r"params of Sequential lacks 0\.bias, 0\.weight"),
        (lambda f, p, x: f({**p, "more": x}, x), ValueError, "params of Sequential has no use for more"),
        (lambda f, p, x: f(p, x, state={}), ValueError, r"state of Sequential lacks 1\.num_batches_tracked"),
        (
            lambda f, p, x: f(p, x),
            ValueError,
            r"writes to its buffers 1\.running_mean, .*: call it with state=f\.state",
        ),
        (lambda f, p, x: f(p, torch.ones(2)), TypeError, "argument 0 of Sequential is a tensor of torch, where arrays"),
        (lambda f, p, x: f(p, {1}), TypeError, "argument 0 of Sequential is set, which is no tensor"),
    ],
)
def test_what_is_refused(images, call, error, message):
    params, f = lazy_runtime.jax.function(network())
    with pytest.raises(error, match=message):
        call(f, params, arrays(images))
