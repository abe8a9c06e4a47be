"""Inference mode, and backward passes where autograd has no workers for xla. Every operator comes through here."""

from __future__ import annotations

import copy

import pytest
import torch

VIEWS = {
    "expand": lambda x: x.expand(2, 3, 4),
    "select": lambda x: x[0],
    "slice": lambda x: x[:, 1:3],
    "detach": lambda x: x.detach(),
    "reshape": lambda x: x.reshape(4, 3),
    "transpose": lambda x: x.t(),
    "diagonal": lambda x: x.diagonal(),
    "unfold": lambda x: x.unfold(1, 2, 1),
    "as_strided": lambda x: x.as_strided((2, 2), (4, 1), 1),
    "data": lambda x: x.data,
}
WRITES = {
    "add_": lambda x: x.add_(1),
    "setitem": lambda x: x.__setitem__((0, slice(1, 3)), 7),
    "of a view": lambda x: x.t()[1].mul_(3),
    "of a split": lambda x: x.split(2, 1)[1].add_(2),
    "of a view of a view": lambda x: x.view(12)[2:8].view(2, 3)[1].fill_(9),
    "out": lambda x: torch.add(x, 1, out=x),
    "copy_": lambda x: x.copy_(torch.full((4,), 5.0)),
}


def host() -> torch.Tensor:
    return torch.arange(12.0).reshape(3, 4)


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_views_in_inference_mode_of_what_was_made_outside(view):
    expected_base, base = host(), host().to("xla")
    with torch.inference_mode():
        expected, got = view(expected_base), view(base)
        assert got.is_inference() == expected.is_inference()
        assert torch.equal(got.cpu(), expected)
        assert got.stride() == expected.stride()
    # an alias, which later writes reach
    base.mul_(2)
    expected_base.mul_(2)
    assert torch.equal(got.cpu(), expected)


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_views_in_inference_mode_of_what_was_made_inside(view):
    with torch.inference_mode():
        expected, got = view(host() + 1), view(host().to("xla") + 1)
        assert torch.equal(got.cpu(), expected)
        assert torch.equal(view(torch.ones(3, 4, device="xla")).cpu(), view(torch.ones(3, 4)))


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_writes_in_inference_mode(write, inside):
    expected, x = host(), host().to("xla")
    with torch.inference_mode():
        if inside:
            expected, x = expected.clone(), x.clone()
        expected_alias, alias = expected[:, 1:], x[:, 1:]
        write(expected)
        write(x)
        assert torch.equal(x.cpu(), expected)
        assert torch.equal(alias.cpu(), expected_alias)
        assert torch.equal(x[1].cpu(), expected[1])  # a view of what was written to
    assert x.is_inference() == expected.is_inference()
    if not inside:
        assert torch.equal((x.requires_grad_() * 2).detach().cpu(), expected * 2)


def test_results_in_inference_mode_are_inference_tensors():
    x = host().to("xla")
    with torch.inference_mode():
        assert (x + 1).is_inference()
        assert torch.ones(2, device="xla").is_inference()
        assert torch.ones(2).to("xla").is_inference()
        assert (x + 1).cpu().is_inference()


def test_reads_in_inference_mode():
    x = host().to("xla")
    with torch.inference_mode():
        assert x[1, 2].item() == 6
        assert torch.ones(2, 3, device="xla").t().sum().item() == 6
        assert repr(x[0]) == "tensor([0., 1., 2., 3.], device='xla:0')"
        assert (x + 1).tolist() == (host() + 1).tolist()
        assert torch.equal(x, x.clone())


MODELS = {
    "convolutions": lambda: torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU(inplace=True), torch.nn.MaxPool2d(2),
        torch.nn.Dropout(0.0), torch.nn.Flatten(), torch.nn.Linear(36, 5), torch.nn.LayerNorm(5), torch.nn.Softmax(-1),
    ),
    "cumulative average": lambda: torch.nn.BatchNorm2d(3, momentum=None),
    "no statistics": lambda: torch.nn.BatchNorm2d(3, track_running_stats=False),
    "instance norm": lambda: torch.nn.InstanceNorm2d(3, affine=True, track_running_stats=True),
}  # fmt: skip


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_modules_in_inference_mode(make, training):
    expected_model = make().train(training)
    model = copy.deepcopy(expected_model).to("xla")
    image = torch.rand(2, 3, 8, 8)
    with torch.inference_mode():
        for _ in range(2):
            expected, got = expected_model(image), model(image.to("xla"))
    torch.testing.assert_close(got.cpu(), expected)
    for name, buffer in expected_model.named_buffers():
        torch.testing.assert_close(model.get_buffer(name).cpu(), buffer)


def test_a_module_made_in_inference_mode():
    with torch.inference_mode():
        expected = torch.nn.Linear(4, 2)
        weight = expected.weight.clone()
        layer = expected.to("xla")
        assert layer.weight.device.type == "xla"
        torch.testing.assert_close(layer(host().to("xla")).cpu(), host() @ weight.t() + layer.bias.cpu())


def test_compiled_in_inference_mode():
    def function(x):
        return (x.t() + 1).sum(0), x[0]

    x = host().to("xla")
    with torch.inference_mode():
        total, row = torch.compile(function, backend="openxla")(x)
        expected_total, expected_row = function(host())
        assert torch.equal(total.cpu(), expected_total)
        assert torch.equal(row.cpu(), expected_row)


def test_first_use_in_inference_mode_and_after_a_cpu_backward(forked_process):
    forked_process(
        """
        import threading
        import torch

        torch.ones(2, requires_grad=True).sum().backward()  # fixes autograd's workers, none of them for xla
        with torch.inference_mode():
            assert torch.ones(2, 3, device="xla").t().sum().item() == 6

        def train(grads):
            x = torch.ones(3, device="xla", requires_grad=True)
            with torch.inference_mode():
                (x * 2).sum().item()
            (x * 2).backward(torch.full((3,), 2.0, device="xla"))
            grads.append(x.grad.tolist())

        grads = []
        train(grads)
        thread = threading.Thread(target=train, args=(grads,))
        thread.start()
        thread.join()
        assert grads == [[4.0] * 3] * 2, grads
        """
    )
