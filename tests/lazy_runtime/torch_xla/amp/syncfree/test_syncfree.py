"""Optimizers that skip steps by themselves."""

from __future__ import annotations

import pytest
import torch

import lazy_runtime
from lazy_runtime.common import metrics
from lazy_runtime.torch_xla.amp import GradScaler, autocast, syncfree
from lazy_runtime.torch_xla.amp.syncfree import _functional, adamw

CASES = [
    (syncfree.SGD, torch.optim.SGD, {"lr": 0.1}),
    (syncfree.SGD, torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "dampening": 0.3, "weight_decay": 0.1}),
    (syncfree.SGD, torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "maximize": True}),
    (syncfree.Adam, torch.optim.Adam, {"lr": 0.1, "weight_decay": 0.1}),
    (syncfree.AdamW, torch.optim.AdamW, {"lr": 0.1, "amsgrad": True}),
]
INFINITE = {0, 2}  # steps whose gradients are to be skipped


@pytest.mark.parametrize(("ours", "torchs", "options"), CASES)
@pytest.mark.parametrize("skipped", [INFINITE, set()], ids=["skips", "none"])
def test_as_if_skipped_steps_had_not_been_made(ours, torchs, options, skipped):
    torch.manual_seed(0)
    start, gradients = torch.randn(5), torch.randn(5, 5)
    expected = torch.nn.Parameter(start.clone())
    reference = torchs([expected], **options)
    found = torch.nn.Parameter(start.to("xla"))
    optimizer = ours([found], **options)
    lazy_runtime.sync()
    metrics.clear()
    for n, gradient in enumerate(gradients):
        if n not in skipped:
            expected.grad = gradient
            reference.step()
        found.grad = torch.full_like(gradient, torch.inf).to("xla") if n in skipped else gradient.to("xla")
        optimizer.step(found_inf=torch.tensor(float(n in skipped), device="xla"))
    assert metrics.value("ExecuteComputation") == 0
    torch.testing.assert_close(found.detach().cpu(), expected.detach())


@pytest.mark.parametrize("optimizer_type", [syncfree.SGD, syncfree.Adam, syncfree.AdamW])
def test_without_found_inf_it_is_a_step(optimizer_type):
    parameter = torch.nn.Parameter(torch.ones(2, device="xla"))
    optimizer = optimizer_type([parameter], lr=0.5, weight_decay=0.0)
    parameter.grad = torch.ones(2, device="xla")
    optimizer.step()
    torch.testing.assert_close(parameter.detach().cpu(), torch.full((2,), 0.5))


def test_a_scaled_step_reads_nothing():
    torch.manual_seed(0)
    layer = torch.nn.Linear(3, 2).to("xla")
    optimizer = syncfree.SGD(layer.parameters(), lr=0.1, momentum=0.9)
    scaler = GradScaler(init_scale=4.0, growth_interval=2)
    x = torch.ones(4, 3, device="xla")
    weights, programs = [], []
    for factor in (1.0, torch.inf, 1.0):
        lazy_runtime.sync()
        metrics.clear()
        optimizer.zero_grad()
        with autocast(torch.device("xla:0"), dtype=torch.bfloat16):
            y = layer(x)
            assert y.dtype is torch.bfloat16
            loss = y.float().square().mean() * factor
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        lazy_runtime.sync()
        programs.append(metrics.value("ExecuteComputation"))
        weights.append(layer.weight.detach().cpu())
    assert programs == [1, 1, 1]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[1], weights[2])
    assert scaler.get_scale() == 2.0


def test_other_optimizers_are_skipped_by_the_host():
    parameter = torch.nn.Parameter(torch.ones(2, device="xla"))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    scaler = GradScaler()
    scaler.scale((parameter * torch.inf).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert parameter.tolist() == [1, 1]


@pytest.mark.parametrize("kind", [syncfree.Adam, syncfree.AdamW])
def test_a_warm_up_begins_with_a_rate_of_zero(kind):
    torch.manual_seed(0)
    start, gradient = torch.randn(3), torch.tensor([1.0, 0.0, 0.0])
    found, expected = torch.nn.Parameter(start.to("xla")), torch.nn.Parameter(start.clone())
    options = {"lr": 0.0, "weight_decay": 0.1}
    torchs = {syncfree.Adam: torch.optim.Adam, syncfree.AdamW: torch.optim.AdamW}[kind]
    optimizer, reference = kind([found], **options), torchs([expected], **options)
    for rate in (0.0, 0.1):
        for each, of in ((optimizer, found), (reference, expected)):
            each.param_groups[0]["lr"] = rate
            of.grad = gradient.to(of.device)
            each.step()
    torch.testing.assert_close(found.detach().cpu(), expected.detach())
    assert adamw.AdamW is syncfree.AdamW


def test_complex_parameters_and_sparse_gradients():
    torch.manual_seed(0)
    start, gradient = torch.randn(4, dtype=torch.complex64), torch.randn(4, dtype=torch.complex64)
    found, expected = torch.nn.Parameter(start.to("xla")), torch.nn.Parameter(start.clone())
    optimizer, reference = syncfree.Adam([found], lr=0.1), torch.optim.Adam([expected], lr=0.1)
    for _ in range(2):
        found.grad, expected.grad = gradient.to("xla"), gradient.clone()
        optimizer.step()
        reference.step()
    torch.testing.assert_close(found.detach().cpu(), expected.detach())
    table = torch.nn.Embedding(3, 2, sparse=True).to("xla")
    table(torch.tensor([1], device="xla")).sum().backward()
    with pytest.raises(RuntimeError, match="SparseAdam"):
        syncfree.Adam(table.parameters()).step()


ADAM = {"beta1": 0.8, "beta2": 0.9, "lr": 0.1, "weight_decay": 0.1, "eps": 1e-6}
SGD = {"lr": 0.1, "momentum": 0.9, "dampening": 0.3, "weight_decay": 0.1, "nesterov": False, "maximize": False}


def _numbers(count, *values):
    return [[torch.full((), float(value)).to("xla") for value in values] for _ in range(count)]


@pytest.mark.parametrize("amsgrad", [False, True])
@pytest.mark.parametrize("use_adamw", [False, True])
def test_steps_of_adam_as_functions(amsgrad, use_adamw):
    torch.manual_seed(0)
    start, gradients = torch.randn(2, 5), torch.randn(3, 2, 5)
    expected = [torch.nn.Parameter(each.clone()) for each in start]
    options = {"lr": 0.1, "betas": (0.8, 0.9), "eps": 1e-6, "weight_decay": 0.1, "amsgrad": amsgrad}
    reference = (torch.optim.AdamW if use_adamw else torch.optim.Adam)(expected, **options, maximize=True)
    params = [each.to("xla") for each in start]
    means, squares, maxima = ([torch.zeros(5).to("xla") for _ in range(2)] for _ in range(3))
    (steps,) = _numbers(1, 0, 0)
    for number, gradient in enumerate(gradients):
        is_skipped = number == 1
        given = [each.to("xla") / (0 if is_skipped else 1) for each in gradient]
        _functional.adam_step(
            None if number == 0 else torch.tensor(float(is_skipped)).to("xla"),
            steps, params, given, means, squares, maxima,
            amsgrad=amsgrad, maximize=True, use_adamw=use_adamw, **ADAM,
        )  # fmt: skip
        if not is_skipped:
            for each, of in zip(expected, gradient, strict=True):
                each.grad = of.clone()
            reference.step()
    assert [each.item() for each in steps] == [2.0, 2.0]
    for place, each in enumerate(expected):
        torch.testing.assert_close(params[place].cpu(), each.detach())
        torch.testing.assert_close(means[place].cpu(), reference.state[each]["exp_avg"])
        torch.testing.assert_close(squares[place].cpu(), reference.state[each]["exp_avg_sq"])
        greatest = reference.state[each]["max_exp_avg_sq"] if amsgrad else torch.zeros(5)
        torch.testing.assert_close(maxima[place].cpu(), greatest)


@pytest.mark.parametrize("changes", [{}, {"dampening": 0.0, "nesterov": True, "maximize": True}, {"momentum": 0.0}])
def test_steps_of_sgd_as_functions(changes):
    torch.manual_seed(0)
    options = {**SGD, **changes}
    start, gradients = torch.randn(2, 5), torch.randn(4, 2, 5)
    expected = [torch.nn.Parameter(each.clone()) for each in start]
    reference = torch.optim.SGD(expected, **options)
    params, buffers = [each.to("xla") for each in start], [None, None]
    (steps,) = _numbers(1, 0, 0)
    for number, gradient in enumerate(gradients):
        is_skipped = number in (0, 2)
        given = [each.to("xla") / (0 if is_skipped else 1) for each in gradient]
        found_inf = torch.tensor([float(is_skipped)]).to("xla")
        _functional.sgd_step(found_inf, steps, params, given, buffers, **options)
        if not is_skipped:
            for each, of in zip(expected, gradient, strict=True):
                each.grad = of.clone()
            reference.step()
    assert [each.item() for each in steps] == [2.0, 2.0]
    for place, each in enumerate(expected):
        torch.testing.assert_close(params[place].cpu(), each.detach())
        kept = reference.state[each].get("momentum_buffer")
        if options["momentum"]:
            torch.testing.assert_close(buffers[place].cpu(), kept)
