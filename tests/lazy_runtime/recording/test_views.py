"""Views and in-place operators: programs of both, on xla and on the CPU."""

from __future__ import annotations

import random

import pytest
import torch

VIEWS = {
    "transpose": lambda x: x.transpose(0, -1),
    "reversed": lambda x: x.permute(*reversed(range(x.dim()))),
    "tail": lambda x: x[1:],
    "every other": lambda x: x[..., ::2],
    "first": lambda x: x[0] if x.dim() > 1 else x[:1],
    "last": lambda x: x.select(-1, -1) if x.dim() > 1 else x[-1:],
    "new axis": lambda x: x[None] if x.dim() < 4 else x,
    "squeeze": lambda x: x.squeeze(),
    "diagonal": lambda x: x.diagonal() if x.dim() > 1 else x,
    "above the diagonal": lambda x: x.diagonal(1, 0, -1) if x.dim() > 1 and x.shape[-1] > 1 else x,
    "flat": lambda x: x.view(-1) if x.is_contiguous() else x,
    "reshape": lambda x: x.reshape(-1),
    "narrow": lambda x: x.narrow(-1, 0, max(1, x.shape[-1] - 1)) if x.dim() else x,
    "unbind": lambda x: x.unbind(0)[-1] if x.dim() > 1 else x,
    "split": lambda x: x.split(2, -1)[-1] if x.dim() else x,
    "chunk": lambda x: x.chunk(2)[0] if x.dim() else x,
    "detach": lambda x: x.detach(),
    "data": lambda x: x.data,
    "as_strided": lambda x: x.as_strided((2, 2), (1, 2), x.storage_offset()) if x.storage_offset() < 10 else x,
    "windows": lambda x: x.unfold(-1, 2, 2) if 1 < x.dim() < 4 and x.shape[-1] > 1 else x,
}


def _set(index):
    def write(x, value):
        x[index(x) if callable(index) else index] = value

    return write


def _indices(*values):
    return lambda x: torch.tensor(values, device=x.device)


WRITES = {
    "add_": lambda x, value: x.add_(value),
    "mul_": lambda x, value: x.mul_(value),
    "fill_": lambda x, value: x.fill_(value),
    "clamp_": lambda x, value: x.clamp_(max=value),
    "sum into": lambda x, value: x.add_(x.sum(), alpha=value),
    "ellipsis": _set(...),
    "new axis": _set((None, ...)),
    "integer": _set(0),
    "negative": _set(-1),
    "step": _set(slice(None, None, 2)),
    "mask": _set(lambda x: x > 3),
    "row mask": _set(lambda x: (x > 3).reshape(x.shape[0], -1)[:, 0]),
    "indices": _set(_indices(0, -1)),
    "list": _set([0]),
    "slice and indices": _set(lambda x: (slice(None), torch.tensor([0, -1], device=x.device))),
    "two indices": _set(lambda x: (torch.tensor([0, -1], device=x.device), torch.tensor([0, 0], device=x.device))),
    "masked_fill_": lambda x, value: x.masked_fill_(x > 2, value),
    "index_fill_": lambda x, value: x.index_fill_(0, torch.tensor([0], device=x.device), value),
    "copy_": lambda x, value: x.copy_(torch.arange(x.numel()).view(x.shape).to(x.device)),
    "copy_ from the CPU": lambda x, value: x.copy_(torch.arange(x.numel()).view(x.shape)),
    "out": lambda x, value: torch.add(x.clone(), value, out=x),
    "itself": lambda x, value: x.copy_(x.flip(0)),
    "setitem of a view": lambda x, value: x.__setitem__(slice(1, None), x[:-1].clone()),
}


def program(seed: int) -> list[tuple[str, str, int, float]]:
    """Steps (kind, operator, which of the tensors so far, value)."""
    choose = random.Random(seed)
    steps = []
    for _ in range(choose.randint(2, 7)):
        kind = choose.choice(["view", "view", "write"])
        name = choose.choice(list(VIEWS if kind == "view" else WRITES))
        steps.append((kind, name, choose.randint(0, 9), choose.randint(2, 5)))
    return steps


def run(base: torch.Tensor, steps: list[tuple[str, str, int, float]]) -> list[torch.Tensor]:
    tensors = [base]
    for kind, name, which, value in steps:
        tensor = tensors[which % len(tensors)]
        if kind == "view":
            tensors.append(VIEWS[name](tensor))
        else:
            WRITES[name](tensor, value)
    return tensors


@pytest.mark.parametrize("shard", range(8))
def test_programs_of_views_and_writes(shard):
    """Every alias sees every write, with torch's sizes, strides and offsets."""
    done = 0
    for seed in range(shard * 1000, shard * 1000 + 20):
        shape = [(4, 6), (2, 3, 4), (24,), (4, 3, 2)][seed % 4]
        steps = program(seed)
        try:
            expected = run(torch.arange(24.0).reshape(shape), steps)
        except (RuntimeError, IndexError):
            continue  # not a program: an index that does not fit
        done += 1
        got = run(torch.arange(24.0).reshape(shape).to("xla"), steps)
        for ours, torchs in zip(got, expected, strict=True):
            assert torch.equal(ours.cpu(), torchs), (seed, steps)
            if all(name != "out" for _, name, *_ in steps):
                look = ours.shape, ours.stride(), ours.storage_offset()
                assert look == (torchs.shape, torchs.stride(), torchs.storage_offset()), (seed, steps)
    assert done >= 8


@pytest.mark.parametrize("name", WRITES)
def test_write_through_a_view_of_a_view(name):
    def write(device):
        x = torch.arange(24.0).reshape(4, 6).to(device)
        y = x[1:].t()[::2]
        WRITES[name](y, 3)
        return x.cpu(), y.cpu()

    for ours, torchs in zip(write("xla"), write("cpu"), strict=True):
        assert torch.equal(ours, torchs)


def test_as_strided_acts_on_the_base():
    for device in ("cpu", "xla"):
        x = torch.arange(24.0, device=device).reshape(4, 6)
        y = x.diagonal(1).as_strided((2, 3), (1, 2))
        assert y.tolist() == [[1, 3, 5], [2, 4, 6]]
        assert (y.stride(), y.storage_offset()) == ((1, 2), 1)
        y[0] = -1
        assert x[0].tolist() == [0, -1, 2, -1, 4, -1]


def test_as_strided_has_a_gradient():
    grads = []
    for device in ("cpu", "xla"):
        x = torch.arange(6.0, device=device, requires_grad=True)
        (x.as_strided((2, 2), (2, 1), 1) ** 2).sum().backward()
        grads.append(x.grad.tolist())
    assert grads[0] == grads[1]


def test_as_strided_beyond_a_detached_view():
    x = torch.arange(6.0, device="xla")[::2].detach()
    assert x.as_strided((2,), (4,)).tolist() == [0, 4]
    assert x.as_strided((2,), (1,)).tolist() == [0, 1]


@pytest.mark.parametrize("write", [lambda x: x.add_(1), lambda x: x.mul_(x), lambda x: x.copy_(x + 1)])
def test_writes_to_an_expanded_tensor_raise(write):
    x = torch.ones(3, device="xla")
    with pytest.raises(RuntimeError, match="more than one element of the written-to tensor refers to a single memory"):
        write(x.expand(2, 3))


def test_an_expanded_tensor_can_be_filled():
    x = torch.ones(3, device="xla")
    x.expand(2, 3).fill_(3)
    assert x.tolist() == [3, 3, 3]


def test_detach_and_data_share_storage():
    x = torch.ones(3, device="xla", requires_grad=True)
    x.detach().add_(1)
    x.data[0] = 7
    assert x.tolist() == [7, 2, 2]
    x.data = torch.zeros(2, device="xla")
    assert x.tolist() == [0, 0]


def test_metadata_in_place():
    x = torch.arange(6.0, device="xla").reshape(2, 3)
    x.t_().unsqueeze_(0)
    assert x.shape == (1, 3, 2)
    assert x.tolist() == [[[0, 3], [1, 4], [2, 5]]]


def test_writes_are_seen_by_autograd():
    grads = []
    for device in ("cpu", "xla"):
        x = torch.arange(6.0, device=device, requires_grad=True)
        y = x * 2
        y[1:3].mul_(3)
        y.view(2, 3)[1] = 0
        y.sum().backward()
        grads.append(x.grad.tolist())
    assert grads[0] == grads[1] == [2, 6, 6, 0, 0, 0]


def test_a_saved_tensor_that_was_overwritten():
    x = torch.ones(3, device="xla", requires_grad=True)
    y = x.exp()
    y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_leaf_in_place():
    x = torch.ones(3, device="xla", requires_grad=True)
    with pytest.raises(RuntimeError, match="leaf Variable that requires grad is being used in an in-place operation"):
        x.add_(1)


def test_kernels_that_hold_on_to_the_sizes_of_a_view_read_its_own():
    # torch's formula holds the sizes of the gradient by reference while the view is brought up to date
    def gradient(device):
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(2, 2, 4, 4, dtype=torch.float64, generator=generator).to(device).requires_grad_()
        real = torch.view_as_real(torch.fft.rfft(x))
        target = torch.rand(real.shape, dtype=torch.float64, generator=generator).to(device)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(real, target)  # writes to its gradient
        return torch.autograd.grad(loss, x)[0].cpu()

    for _ in range(5):
        torch.testing.assert_close(gradient("xla"), gradient("cpu"))
