"""Batch, group and layer norm."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F

from lazy_runtime.compilation import compiler
from lazy_runtime.ops.nn import norm
from tests.lazy_runtime.ops.comparison import check, close, fresh, rand

FLOATS = [torch.float32, torch.float64, torch.bfloat16]
IMAGES = [(4, 3), (4, 3, 5), (2, 3, 4, 5), (2, 3, 4, 3, 2)]


def batch_norm(x, weight, bias, mean, var, **options):
    """The output, and the statistics as they are afterwards."""
    y = F.batch_norm(x, mean, var, weight, bias, **options)
    return y, mean, var


def statistics(channels, dtype=torch.float32):
    return rand(channels, dtype=dtype, grad=False), rand(channels, dtype=dtype, grad=False).abs() + 0.5


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("sizes", IMAGES, ids=str)
def test_batch_norm(sizes, training):
    check(batch_norm, rand(*sizes), rand(3), rand(3), *statistics(3), training=training, momentum=0.3, eps=1e-3)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_in_each_dtype(training, dtype):
    vectors = rand(3, dtype=dtype), rand(3, dtype=dtype)
    check(batch_norm, rand(4, 3, 4, 5, dtype=dtype), *vectors, *statistics(3, dtype), training=training)


@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_of_bfloat16_with_float32_parameters(training):
    check(batch_norm, rand(4, 3, 4, 5, dtype=torch.bfloat16), rand(3), rand(3), *statistics(3), training=training)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(("weighted", "biased", "tracked"), list(itertools.product([True, False], repeat=3)))
def test_batch_norm_without_some_of_its_vectors(training, weighted, biased, tracked):
    if not training and not tracked:
        training = True  # torch has nothing else to normalise by
    weight, bias = rand(3) if weighted else None, rand(3) if biased else None
    stats = statistics(3) if tracked else (None, None)
    check(batch_norm, rand(4, 3, 4, 5), weight, bias, *stats, training=training)


def test_batch_norm_of_one_value_per_channel():
    for device in ("cpu", "xla"):
        with pytest.raises(ValueError, match="Expected more than 1 value per channel when training"):
            F.batch_norm(torch.ones(1, 3, device=device), None, None, training=True)


def test_batch_norm_in_channels_last_memory():
    image = rand(2, 4, 5, 6).detach().to(memory_format=torch.channels_last).requires_grad_()
    check(lambda *args: F.relu(batch_norm(*args, training=True)[0]), image, rand(4), rand(4), *statistics(4))


@pytest.mark.parametrize("name", ["native_batch_norm", "_native_batch_norm_legit"])
@pytest.mark.parametrize("training", [True, False])
def test_the_operator_itself(name, training):
    """In evaluation it saves nothing, and says so with empty tensors."""
    function = getattr(torch, name)
    args = (rand(4, 3, 5), rand(3), rand(3), *statistics(3), training, 0.1, 1e-5)
    args_there = fresh(args, "xla")
    result, expected = function(*args_there), function(*args)
    close(result, expected)
    assert [x.shape for x in result[1:]] == [(3 if training else 0,)] * 2
    close(args_there[3:5], args[3:5])


def test_a_module_trains_and_evaluates():
    def use(x, weight):
        layer = torch.nn.BatchNorm2d(3, momentum=None).to(x.device)
        with torch.no_grad():
            layer.weight.copy_(weight)
        outputs = [layer(x), layer(x * 2)]
        layer.eval()
        return *outputs, layer(x), layer.running_mean, layer.running_var, layer.num_batches_tracked

    check(use, rand(2, 3, 4, 5), rand(3, grad=False))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("sizes", "groups"), [((2, 6), 3), ((2, 6, 5), 1), ((2, 6, 4, 3), 6), ((2, 4, 3, 2, 3), 2)])
def test_group_norm(sizes, groups, dtype):
    weight, bias = rand(sizes[1], dtype=dtype), rand(sizes[1], dtype=dtype)
    check(F.group_norm, rand(*sizes, dtype=dtype), groups, weight, bias, 1e-4)


@pytest.mark.parametrize("weighted", [False, True])
def test_group_norm_without_some_of_its_vectors(weighted):
    check(F.group_norm, rand(2, 6, 4, 3), 3, rand(6) if weighted else None)
    # torch's own gradient of a bias without a weight raises "tensor does not have a device"
    check(F.group_norm, rand(2, 6, 4, 3, grad=False), 3, None, rand(6, grad=False))


def test_instance_norm():
    check(F.instance_norm, rand(2, 3, 5, 4), None, None, rand(3), rand(3))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("normalized", [1, 2, 3])
def test_layer_norm(normalized, dtype):
    sizes = (4, 5, 6)
    last = sizes[-normalized:]
    check(F.layer_norm, rand(*sizes, dtype=dtype), last, rand(*last, dtype=dtype), rand(*last, dtype=dtype), 1e-4)


@pytest.mark.parametrize(("weighted", "biased"), [(False, False), (True, False), (False, True)])
def test_layer_norm_without_some_of_its_vectors(weighted, biased):
    weight, bias = rand(6) if weighted else None, rand(6) if biased else None
    check(F.layer_norm, rand(2, 5, 6), (6,), weight, bias)


def test_rms_norm():
    check(F.rms_norm, rand(2, 5, 6), (6,), rand(6))


def test_large_means_do_not_cancel():
    """The variance is of the centred values: 1000 ± 1 has one of about 1, not a rounding error of a million. The mean
    itself is known to 1000 times float32's 6e-8, twice.
    """
    check(F.layer_norm, rand(4, 64, grad=False) + 1000, (64,), tolerance=2e-4)
    check(batch_norm, rand(64, 3, grad=False) + 1000, None, None, *statistics(3), training=True, tolerance=2e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_batch_norm_that_updates_its_statistics_gives_them_in_their_dtype(dtype):
    results = []
    for device in ("cpu", "xla"):
        x = torch.randn(4, 3, 5, generator=torch.Generator().manual_seed(0)).to(device, dtype)
        weight, bias, mean, var = (torch.full((3,), n, dtype=dtype, device=device) for n in (2.0, 0.5, 0.0, 1.0))
        found = torch.ops.aten._batch_norm_with_update(x, weight, bias, mean, var, 0.1, 1e-5)
        results.append((*found, mean, var))
    close(results[1], results[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize(("weighted", "biased"), list(itertools.product([True, False], repeat=2)))
def test_layer_norm_in_torchs_kernels(monkeypatch, weighted, biased, dtype):
    """Large ones on the CPU, to the last bit: it is the same code."""
    monkeypatch.setattr(norm, "LEAST_FOR_ATEN", 1)
    compiler.clear()
    vectors = [rand(6, dtype=dtype) if wanted else None for wanted in (weighted, biased)]
    inputs = [rand(3, 5, 6, dtype=dtype), *vectors]
    here, there = (fresh(inputs, device) for device in ("cpu", "xla"))
    results = [F.layer_norm(x, (6,), weight, bias) for x, weight, bias in (here, there)]
    assert torch.equal(results[1].cpu(), results[0])
    for result in results:
        result.backward(torch.linspace(-1, 1, 90).reshape(3, 5, 6).to(result.device, dtype))
    for x, y in zip(here, there, strict=True):
        assert x is y is None or torch.equal(x.grad, y.grad.cpu())
    compiler.clear()


def by_formula(x, grad, eps=1e-5):
    """The gradient of batch norm without a weight, by its formula (Ioffe and Szegedy 2015, section 3)."""
    dims = [dim for dim in range(x.dim()) if dim != 1]
    scale = (x.var(dims, keepdim=True, correction=0) + eps).rsqrt()
    normed = (x - x.mean(dims, keepdim=True)) * scale
    return scale * (grad - grad.mean(dims, keepdim=True) - normed * (grad * normed).mean(dims, keepdim=True))


@pytest.mark.parametrize("road", ["lazy", "compiled", "cpu"])
@pytest.mark.parametrize("normed", ["batch", "instance"])
@pytest.mark.parametrize("sizes", [(1, 2, 2, 3), (1, 3, 4, 4), (1, 4, 1, 5), (2, 2, 2, 3), (1, 2, 3, 2, 2)], ids=str)
def test_the_gradient_for_one_image_is_the_formulas(sizes, normed, road):
    """Torch 2.13's own kernel on the CPU reads a gradient of ambiguous strides, as it comes out of
    `flatten(2).transpose(1, 2)`, in another order: no reference here, nor for a fuzzer.
    """

    def run(x, grad):
        norm = F.instance_norm(x) if normed == "instance" else F.batch_norm(x, None, None, training=True)
        return norm.flatten(2).transpose(1, 2) * grad

    device = "cpu" if road == "cpu" else "xla"
    x, grad = torch.randn(sizes, dtype=torch.float64), torch.randn(sizes, dtype=torch.float64)
    leaf = x.to(device, copy=True).requires_grad_()
    function = run if road == "lazy" else torch.compile(run, backend="openxla", dynamic=False)
    function(leaf, grad.flatten(2).transpose(1, 2).to(device)).sum().backward()
    if normed == "instance":
        expected = torch.cat([by_formula(*each) for each in zip(x.split(1), grad.split(1), strict=True)])
    else:
        expected = by_formula(x, grad)
    torch.testing.assert_close(leaf.grad.cpu(), expected, rtol=1e-10, atol=1e-10)


def test_the_gradient_for_one_image_of_ambiguous_strides():
    x = torch.randn(1, 2, 2, 3, dtype=torch.float64)
    grad = torch.randn(12, dtype=torch.float64).as_strided((1, 2, 2, 3), (2, 1, 6, 2))
    leaf = x.to("xla").requires_grad_()
    there = torch.empty_strided(grad.shape, grad.stride(), dtype=torch.float64, device="xla").copy_(grad)
    (found,) = torch.autograd.grad(F.batch_norm(leaf, None, None, training=True), leaf, there)
    torch.testing.assert_close(found.cpu(), by_formula(x, grad), rtol=1e-10, atol=1e-10)
