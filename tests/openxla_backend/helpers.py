"""What the tests of the backend share: comparison with eager torch on the CPU, and counts of what happened."""

import contextlib
import copy

import torch

from lazy_runtime.common import metrics


def compiled(function, **options):
    return torch.compile(function, backend="openxla", **options)


def leaves(tree):
    return torch.utils._pytree.tree_leaves(tree)


def to(tree, device):
    """The tree's tensors on a device, as leaves that want a gradient where the originals do."""

    def move(leaf):
        if not isinstance(leaf, torch.Tensor):
            return leaf
        moved = leaf.detach().to(device) if device != "cpu" else leaf.detach().clone()
        return moved.requires_grad_(leaf.requires_grad)

    return torch.utils._pytree.tree_map(move, tree)


def assert_same(actual, expected, device="cpu", strides=True, tolerance=1e-5):
    """Trees of equal structure whose tensors agree in value, dtype, sizes, strides and requires_grad."""
    assert torch.utils._pytree.tree_structure(actual) == torch.utils._pytree.tree_structure(expected)
    for got, wanted in zip(leaves(actual), leaves(expected), strict=True):
        assert type(got) is type(wanted)
        if not isinstance(wanted, torch.Tensor):
            assert got == wanted
            continue
        assert got.device.type == device
        assert got.dtype == wanted.dtype
        assert got.shape == wanted.shape
        assert got.requires_grad == wanted.requires_grad
        if strides:
            assert got.stride() == wanted.stride()
        exact = not (wanted.dtype.is_floating_point or wanted.dtype.is_complex)
        close = {"rtol": 0, "atol": 0} if exact else {"rtol": tolerance, "atol": tolerance}
        torch.testing.assert_close(got.detach().cpu(), wanted.detach(), equal_nan=True, **close)


def check(function, *args, device="cpu", calls=2, strides=True, tolerance=1e-5, **options):
    """Calls the compiled function as often as eager torch on the CPU, on arguments of its own; compares what it
    returns and what it leaves in its arguments each time. Returns the last outputs.
    """
    fast = compiled(function, **options)
    mine, theirs = to(args, device), copy.deepcopy(args)
    for _ in range(calls):
        actual, expected = fast(*mine), function(*theirs)
        assert_same(actual, expected, device, strides, tolerance)
        assert_same(mine, theirs, device, strides, tolerance)
    return actual


@torch.no_grad()
def check_inference(model, x, rtol, atol, dynamic=None, equal_nan=False):
    """Calls a copy of the model on xla twice, compiled, and compares with the CPU."""
    model = model.eval()
    expected = model(x)
    fast = compiled(copy.deepcopy(model).to("xla"), dynamic=dynamic)
    for _ in range(2):
        found = fast(x.to("xla"))
    assert found.stride() == expected.stride()
    torch.testing.assert_close(found.cpu(), expected, rtol=rtol, atol=atol, equal_nan=equal_nan)


@contextlib.contextmanager
def counting(*names):
    """A dict that, after the block, holds how much each counter has grown."""
    grown = {}
    before = {name: metrics.value(name) for name in names}
    yield grown
    grown.update({name: metrics.value(name) - before[name] for name in names})
