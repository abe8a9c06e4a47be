"""What training code really does, on the CPU in eager mode and on xla, lazily and with the model compiled."""

from __future__ import annotations

import functools
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import clip_grad_norm_, clip_grad_value_
from torch.optim import swa_utils

import lazy_runtime
from tests.openxla_backend.helpers import counting

# torch's own, while Dynamo traces: it looks at `.grad` of any tensor, and instantiates autograd functions
pytestmark = [
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated"),
    pytest.mark.filterwarnings("ignore:Lazily setting the epoch:UserWarning"),
]

#: (device, how a model is compiled) → what is compared
Scenario = Callable[[str, Callable[[Any], Any]], list[Any]]

STEPS = 4


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 6))


def data(device: str, number: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(number)
    return torch.randn(5, 6, generator=generator).to(device)


def state(module: nn.Module) -> list[torch.Tensor]:
    return [value.detach().cpu() for value in module.state_dict().values()]


def train(
    device: str,
    call: Callable[[torch.Tensor], torch.Tensor],
    optimizer: torch.optim.Optimizer,
    steps: int = STEPS,
    before_step: Callable[[], Any] = lambda: None,
) -> list[float]:
    losses = []
    for number in range(steps):
        x = data(device, number)
        optimizer.zero_grad()
        loss = F.mse_loss(call(x), x)
        loss.backward()
        before_step()
        optimizer.step()
        losses.append(loss.item())
    return losses


def clipping(device, compiled):
    model = net().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)

    def clip() -> None:
        clip_grad_norm_(model.parameters(), 0.1)
        clip_grad_value_(model.parameters(), 0.02)

    return [train(device, compiled(model), optimizer, before_step=clip), *state(model)]


def averaged_models(device, compiled):
    model = net().to(device)
    call = compiled(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = swa_utils.SWALR(optimizer, swa_lr=0.05, anneal_epochs=2)
    mean = swa_utils.AveragedModel(model)
    moving = swa_utils.AveragedModel(model, multi_avg_fn=swa_utils.get_ema_multi_avg_fn(0.9), use_buffers=True)

    def average() -> None:
        mean.update_parameters(model)
        moving.update_parameters(model)
        scheduler.step()

    optimizer.register_step_post_hook(lambda *_: average())
    losses = train(device, call, optimizer)
    swa_utils.update_bn([data(device, number) for number in range(3)], mean)
    return [losses, *state(mean), *state(moving)]


def parameter_groups_and_frozen_layers(device, compiled):
    model = net().to(device)
    call = compiled(model)
    model[0].requires_grad_(False)
    optimizer = torch.optim.Adam([{"params": model[3].parameters()}], lr=0.05)
    losses = train(device, call, optimizer, 2)
    model[0].requires_grad_(True)
    optimizer.add_param_group({"params": model[0].parameters(), "lr": 0.01, "weight_decay": 0.1})
    return [losses, train(device, call, optimizer, 3), *state(model)]


def tied_weights(device, compiled):
    model = net().to(device)
    model[3].weight = nn.Parameter(model[0].weight.detach().t().contiguous())
    model.append(nn.Linear(6, 6, device=device))
    model.append(model[4])  # one layer, twice
    with torch.no_grad():
        model[4].weight.copy_(torch.eye(6))
        model[4].bias.zero_()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return [train(device, compiled(model), optimizer), *state(model)]


def hooks(device, compiled):
    model = net().to(device)
    seen: list[torch.Tensor] = []
    model[0].weight.register_hook(lambda gradient: gradient * 0.5)
    model[3].weight.register_post_accumulate_grad_hook(lambda parameter: seen.append(parameter.grad.norm()))
    model[2].register_forward_hook(lambda module, args, output: output * 1.1)
    model[3].register_full_backward_hook(lambda module, grads, outputs: (grads[0] * 2,))
    losses = train(device, compiled(model), torch.optim.SGD(model.parameters(), lr=0.1))
    return [losses, [float(norm) for norm in seen], *state(model)]


class Clamped(torch.autograd.Function):
    """Rounds forward, passes the gradient where the input is small."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return torch.round(x * 4) / 4

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        return torch.where(x.abs() < 1, gradient, 0)


def autograd_function(device, compiled):
    model = net().to(device)
    call = compiled(lambda x: Clamped.apply(model(x)))
    return [train(device, call, torch.optim.SGD(model.parameters(), lr=0.1)), *state(model)]


def functional_transforms(device, compiled):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, 6)).to(device)
    parameters = {name: value.detach() for name, value in model.named_parameters()}

    def loss(parameters: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(model, parameters, (x[None],)).square().mean()

    per_sample = compiled(torch.func.vmap(torch.func.grad(loss), (None, 0)))
    for number in range(2):
        gradients = per_sample(parameters, data(device, number))
        parameters = {name: value - 0.1 * gradients[name].mean(0) for name, value in parameters.items()}
    return [value.cpu() for value in parameters.values()]


def resumed(device, compiled):
    """The second half of a run from what was saved after the first one; the whole run is beside it, bit for bit."""
    model = net().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    call = compiled(model)
    train(device, call, optimizer)
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    whole = train(device, call, optimizer)
    file.seek(0)
    saved = torch.load(file, map_location="cpu")  # torch leaves Adam's step counters where they are loaded to
    other = net().to(device)
    other.load_state_dict(saved["model"])
    again = torch.optim.AdamW(other.parameters(), lr=0.05)
    again.load_state_dict(saved["optimizer"])
    assert train(device, compiled(other), again) == whole
    for mine, theirs in zip(state(other), state(model), strict=True):
        assert torch.equal(mine, theirs)
    return [whole]


SCENARIOS = [
    clipping,
    averaged_models,
    parameter_groups_and_frozen_layers,
    tied_weights,
    hooks,
    autograd_function,
    functional_transforms,
    resumed,
]
COMPILED = {"lazy": lambda model: model, "openxla": functools.partial(torch.compile, backend="openxla")}


@functools.cache
def _expected(scenario: Scenario) -> list[Any]:
    return scenario("cpu", lambda model: model)


@pytest.mark.parametrize("how", COMPILED)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_as_on_the_cpu(scenario, how):
    if how == "openxla" and scenario is parameter_groups_and_frozen_layers and torch.__version__ < (2, 13):
        pytest.skip("Dynamo does not see that a module's parameters require gradients again, with any backend")
    found = scenario("xla", COMPILED[how])
    torch.testing.assert_close(found, _expected(scenario), rtol=2e-4, atol=2e-5)


def test_clipping_reads_nothing():
    model = net().to("xla")
    call = torch.compile(model, backend="openxla")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for number in range(4):
        x = data("xla", number)
        with counting("ExecuteComputation", "UncachedCompile") as counts:
            optimizer.zero_grad()
            F.mse_loss(call(x), x).backward()
            clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
        assert number < 2 or counts == {"ExecuteComputation": 1, "UncachedCompile": 0}


@pytest.mark.parametrize("how", COMPILED)
def test_autocast_and_gradient_scaler(how):
    model = net().to("xla")
    call = COMPILED[how](model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("xla", init_scale=2.0**8)
    losses = []
    for number in range(STEPS):
        x = data("xla", number)
        optimizer.zero_grad()
        with torch.autocast("xla", dtype=torch.bfloat16):
            loss = F.mse_loss(call(x).float(), x)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    plain = net()
    expected = train(
        "cpu",
        plain,
        torch.optim.SGD(plain.parameters(), lr=0.1),
        before_step=lambda: clip_grad_norm_(plain.parameters(), 1.0),
    )
    torch.testing.assert_close(losses, expected, rtol=0.03, atol=0.0)  # bfloat16 has eight bits


@pytest.mark.parametrize("form", ["lazy", "openxla", "step"])
def test_schedule_clipping_and_dropout_compile_once(form):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.1), nn.ReLU(), nn.Linear(8, 6)).to("xla")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    warm_up = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=20)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 180)
    schedule = torch.optim.lr_scheduler.SequentialLR(optimizer, [warm_up, cosine], [20])
    call = torch.compile(model, backend="openxla") if form == "openxla" else model

    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.mse_loss(call(x), x)
        loss.backward()
        clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.detach()

    if form == "step":
        step = torch.compile(step, backend="openxla")
    for number in range(200):
        with counting("ExecuteComputation", "UncachedCompile") as counts:
            step(data("xla", number))
            lazy_runtime.sync()
            schedule.step()
        # the first step makes the optimizer's state
        assert number < 2 or counts == {"ExecuteComputation": 1, "UncachedCompile": 0}, number


@pytest.mark.parametrize(
    "make",
    [
        functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9, nesterov=True),
        functools.partial(torch.optim.Adam, lr=0.1, amsgrad=True, foreach=True),
        functools.partial(torch.optim.AdamW, lr=0.1, foreach=False),
        functools.partial(torch.optim.RMSprop, lr=0.01, centered=True, momentum=0.5),
        functools.partial(torch.optim.Adagrad, lr=0.1),
        functools.partial(torch.optim.Adadelta),
        functools.partial(torch.optim.Adamax, lr=0.1),
        functools.partial(torch.optim.NAdam, lr=0.1),
        functools.partial(torch.optim.RAdam, lr=0.1),
        functools.partial(torch.optim.ASGD, lr=0.1),
        functools.partial(torch.optim.Rprop, lr=0.01),
        functools.partial(torch.optim.Adafactor, lr=0.1),
    ],
    ids=lambda make: "-".join(
        [make.func.__name__, *(str(key) for key, value in make.keywords.items() if value is True)]
    ),
)
def test_optimizers(make):
    reference, model = net(), net().to("xla")
    mine = make(model.parameters())
    call = torch.compile(model, backend="openxla")
    theirs = make(reference.parameters())
    torch.testing.assert_close(train("xla", call, mine), train("cpu", reference, theirs), rtol=2e-4, atol=2e-5)
