"""Plain CPU tensors: in their own memory where XLA can use it, right everywhere else."""

import copy
import gc
import sys
import weakref

import jaxlib
import numpy as np
import pytest
import torch
from torch import nn

from lazy_runtime.ir import dtypes
from openxla_backend.execution import dlpack, host
from tests.openxla_backend.helpers import assert_same, compiled


@pytest.fixture
def imports(monkeypatch):
    """The (tensor, address of the array) pairs that crossed to XLA."""
    seen = []

    def record(tensor):
        array = dlpack.import_tensor(tensor)
        seen.append((tensor, array.unsafe_buffer_pointer()))
        return array

    monkeypatch.setattr(host, "import_tensor", record)
    return seen


def test_parameters_and_inputs_are_not_copied(imports):
    model = torch.nn.Linear(64, 64)
    x = torch.randn(8, 64)
    fast = compiled(model)
    with torch.no_grad():
        fast(x)
    assert sorted(address for _, address in imports) == sorted(
        tensor.data_ptr() for tensor in (x, model.weight, model.bias)
    )
    imports.clear()
    with torch.no_grad():
        fast(x)
    assert [address for _, address in imports] == [x.data_ptr()]  # parameters are imported once


def test_parameters_changed_in_place_are_seen():
    model = torch.nn.Linear(4, 3)
    fast, x = compiled(model), torch.randn(2, 4)
    with torch.no_grad():
        for _ in range(3):
            assert_same(fast(x), model(x))
            model.weight.add_(1)
            model.bias.data.numpy()[:] = 7  # leaves no trace in torch's version counters


def test_parameters_with_new_memory_are_seen():
    model = torch.nn.Linear(4, 3)
    fast, x = compiled(model), torch.randn(2, 4)
    with torch.no_grad():
        for _ in range(3):
            assert_same(fast(x), model(x))
            model.weight.data = torch.randn(3, 4)


@pytest.mark.parametrize("make", [lambda t: t[1:], lambda t: t[::2], lambda t: t.view(3, 5).t()])
def test_unaligned_and_strided_memory_is_copied_at_every_call(make):
    memory = torch.randn(15)
    x = make(memory)
    fast = compiled(lambda x: x * 2)
    for _ in range(3):
        assert_same(fast(x), x * 2)
        memory.add_(1)


def test_unaligned_parameter():
    model = torch.nn.Linear(4, 3)
    model.weight = torch.nn.Parameter(torch.randn(13)[1:].view(3, 4))
    assert model.weight.data_ptr() % dlpack.ALIGNMENT
    fast, x = compiled(model), torch.randn(2, 4)
    with torch.no_grad():
        for _ in range(3):
            assert_same(fast(x), model(x))
            model.weight.mul_(2)


def test_results_belong_to_the_caller():
    """The next call, and the death of the compiled function, leave earlier results alone."""
    fast = compiled(lambda x: x + 1)
    x = torch.zeros(1000)
    first = fast(x)
    first.mul_(5)
    second = fast(x)
    del fast
    torch._dynamo.reset()
    gc.collect()
    assert first.sum().item() == 5000
    assert second.sum().item() == 1000
    assert first.data_ptr() != second.data_ptr()


def test_activations_pass_to_the_backward_graph_without_a_copy(imports):
    x = torch.randn(64, 64).requires_grad_()
    y = compiled(lambda x: (x.sin() * x.cos()).exp())(x)
    imports.clear()
    y.backward(torch.ones_like(y))
    assert imports
    assert all(tensor.data_ptr() == address for tensor, address in imports)


def test_channels_last_activations_are_not_copied(imports):
    conv = torch.nn.Conv2d(3, 8, 3).to(memory_format=torch.channels_last)
    x = torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last)
    y = compiled(lambda x: torch.relu(conv(x)).sin())(x)
    imports.clear()
    y.sum().backward()
    shapes = y.shape, y.movedim(1, -1).shape  # in torch's order, or as the program holds them
    activations = [(tensor, address) for tensor, address in imports if tensor.shape in shapes]
    assert activations
    assert sum(tensor.data_ptr() != address for tensor, address in activations) <= 1  # the incoming gradient


def test_a_process_may_end_while_xla_lets_go_of_a_tensor(forked_process):
    """XLA's thread must not ask for the GIL then: Python ends such a thread, and C++ the process."""
    forked_process("""
        import sys
        import time
        import jax
        import torch
        from openxla_backend.execution.dlpack import import_tensor

        tensor = torch.ones(1000, 1000)
        sys.setswitchinterval(100)  # this thread does not give the GIL away from here to the end
        array = import_tensor(tensor)
        assert array.unsafe_buffer_pointer() == tensor.data_ptr()
        result = jax.jit(lambda x: x @ x @ x @ x)(array)
        del array, tensor
        until = time.perf_counter() + 1
        while time.perf_counter() < until:
            pass
        assert result.is_ready()
    """)


def test_dead_model_is_freed():
    model = torch.nn.Linear(4, 3)
    alive = weakref.ref(model.weight)
    with torch.no_grad():
        compiled(model)(torch.randn(2, 4))
    del model
    torch._dynamo.reset()
    gc.collect()
    assert alive() is None


@pytest.mark.parametrize(
    "tensor",
    [
        torch.randn(3, 1, 5),
        torch.randn(1, 3, 1, 1).to(memory_format=torch.channels_last),
        torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        torch.randn(4, 5).t(),
        torch.randn(2, 1, 3).expand(2, 4, 3),
        torch.zeros(2, 0, 3),
        torch.tensor(3),
    ],
    ids=lambda tensor: f"{tuple(tensor.shape)} {tensor.stride()}",
)
def test_output_strides_are_torchs(tensor):
    def f(x):
        return x.clone(), x + 1, torch.empty_like(x).copy_(x), x.sum(0) if x.dim() else x * 2

    assert_same(compiled(f)(tensor), f(tensor))


def test_public_dlpack_is_enough(monkeypatch):
    """With another jaxlib the direct calls may be gone."""
    monkeypatch.delattr(jaxlib, "_jax")
    monkeypatch.setitem(sys.modules, "jaxlib._jax", None)
    dlpack.importer.cache_clear()
    dlpack.exporter.cache_clear()
    try:
        x = torch.randn(3, dtype=torch.float64).requires_grad_()
        y = compiled(lambda x: x * 2)(x)
        y.sum().backward()
        assert_same((y, x.grad), (x * 2, torch.full((3,), 2.0, dtype=torch.float64)))
        with dtypes.x64():
            assert dlpack.import_tensor(x).unsafe_buffer_pointer() == x.data_ptr()
    finally:
        dlpack.importer.cache_clear()
        dlpack.exporter.cache_clear()


@pytest.mark.parametrize("constant", [False, True])
def test_views_of_a_result_with_the_value_of_an_argument_or_a_constant_share_its_memory(constant):
    def function(x):
        y = x.flip(0)
        y.fill_(2) if constant else y.copy_(x)
        return y, y[:1]

    whole, part = torch.compile(function, backend="openxla")(torch.ones(2, 3))
    whole.add_(5)
    assert part.tolist() == [[7.0 if constant else 6.0] * 3]


def test_results_are_the_user_s_to_resize():
    x = torch.arange(4.0).requires_grad_()
    fast = compiled(lambda x: (x * 2, x.detach() + 1))
    product, y = fast(x)
    product.sum().backward()
    for result in (y, x.grad):
        expected, memory = result.tolist(), result.untyped_storage()
        view = result[1:]
        result.resize_(10)
        assert result[:4].tolist() == expected
        assert view.tolist() == expected[1:]  # it shares the new memory
        view.fill_(7)
        assert result[1:4].tolist() == [7.0] * 3
        memory.resize_(0)


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
def test_a_result_is_an_out_of_another_size():
    y = compiled(lambda x: x * 2)(torch.arange(4.0))
    torch.add(torch.ones(2, 3), 1, out=y)
    assert y.tolist() == [[2.0] * 3] * 2


def test_an_argument_stays_as_it_was():
    """A user's memory that cannot be resized is still the user's."""
    x = torch.from_numpy(np.zeros(3, dtype=np.float32))
    result = compiled(lambda x: x.add_(1))(x)
    assert result is x
    with pytest.raises(RuntimeError, match="not resizable"):
        x.resize_(10)


def test_an_empty_out_inside_of_a_function(device):
    def function(x):
        out = torch.empty(0, device=x.device)
        product = torch.mul(x, 2, out=out)
        return product, out + 1

    x = torch.arange(4.0)
    assert_same(compiled(function)(x.to(device)), function(x), device)


#: Operators of images of which torch's CPU kernels keep the order of dimensions, and its meta kernels may not.
OF_IMAGES = {
    "conv2d": lambda: nn.Conv2d(8, 8, 3, 1, 1),
    "depthwise": lambda: nn.Conv2d(8, 8, 3, 1, 1, groups=8),
    "conv_transpose2d": lambda: nn.ConvTranspose2d(8, 8, 3, 1, 1),
    "max_pool": lambda: nn.MaxPool2d(3, 1, 1),
    "avg_pool": lambda: nn.AvgPool2d(3, 1, 1),
    "adaptive": lambda: nn.AdaptiveAvgPool2d(4),
    "upsample": lambda: nn.Upsample(size=4, mode="bilinear"),
    "batch_norm": lambda: nn.BatchNorm2d(8),
    "group_norm": lambda: nn.GroupNorm(2, 8),
    "dropout": lambda: nn.Dropout2d(0.0),
}


class BetweenTransposes(nn.Module):
    """A token mixer: what follows the transpose views the result's memory."""

    def __init__(self, mixer: nn.Module):
        super().__init__()
        self.first, self.mixer, self.last = nn.Linear(8, 8), mixer, nn.Linear(8, 5)

    def forward(self, x):
        x = self.first(x).transpose(1, 2).view(-1, 8, 4, 4)
        x = self.mixer(x).flatten(2).transpose(1, 2)
        return self.last(torch.nn.functional.gelu(x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("mixer", OF_IMAGES)
def test_images_between_transposes(mixer, dtype):
    torch.manual_seed(0)
    model = BetweenTransposes(OF_IMAGES[mixer]()).to(dtype)
    found = copy.deepcopy(model)
    fast = compiled(found)
    x = torch.randn(2, 16, 8, dtype=dtype)
    for each in (model, fast):
        each(x).square().sum().backward()
    tolerance = {} if dtype is torch.float64 else {"rtol": 1e-4, "atol": 1e-5}  # a convolution's sums of 72 numbers
    torch.testing.assert_close(fast(x), model(x), **tolerance)
    for ours, expected in zip(found.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, expected.grad, **tolerance)
