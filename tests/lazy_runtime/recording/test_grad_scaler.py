"""`torch.amp.GradScaler("xla")` against the same on the CPU."""

from __future__ import annotations

import copy
import itertools
import pickle
from typing import Any

import pytest
import torch

import lazy_runtime
from lazy_runtime.common import metrics
from lazy_runtime.torch_xla.experimental import eager_mode


@pytest.fixture(params=["lazy", "eager"])
def road(request: pytest.FixtureRequest) -> str:
    eager_mode(request.param == "eager")
    return request.param


def _model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))


def _train(model: torch.nn.Module, device: str, optimizer: Any, clip: bool, overflow: tuple[int, ...] = (2, 5)) -> Any:
    scaler = torch.amp.GradScaler(device, init_scale=2.0**10, growth_interval=2)
    history = []
    for step in range(8):
        x = torch.linspace(-1, 1, 12).view(3, 4) + step / 10
        if step in overflow:
            x[0, 0] = float("inf")
        optimizer.zero_grad()
        loss = model(x.to(device)).square().mean()
        scaler.scale(loss).backward()
        if clip:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        before = [parameter.detach().clone() for parameter in model.parameters()]
        scaler.step(optimizer)
        scaler.update()
        moved = any(not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
        assert moved == (step not in overflow)
        history.append((scaler.get_scale(), scaler._get_growth_tracker()))
    return history, scaler.state_dict()


@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_training_with_steps_that_overflow(kind: Any, clip: bool, road: str) -> None:
    model = _model()
    reference = copy.deepcopy(model)
    model = model.to("xla")
    found = _train(model, "xla", kind(model.parameters(), lr=0.1), clip)
    assert found == _train(reference, "cpu", kind(reference.parameters(), lr=0.1), clip)
    assert len({scale for scale, _ in found[0]}) > 1
    for a, b in zip(model.parameters(), reference.parameters(), strict=True):
        # Adam divides gradients by their own size, so what is rounded otherwise in a small one shows in the step
        torch.testing.assert_close(a.cpu(), b, rtol=1e-4, atol=1e-5)


def test_float16_under_autocast_finds_its_scale(road: str) -> None:
    model = _model().to("xla")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("xla", init_scale=2.0**24, growth_interval=100)
    x = torch.linspace(-1, 1, 12).view(3, 4).to("xla")
    losses = []
    for _ in range(24):
        optimizer.zero_grad()
        with torch.autocast("xla", dtype=torch.float16):
            output = model(x)
            loss = torch.nn.functional.mse_loss(output, torch.ones(3, 1, device="xla"))
        assert output.dtype is torch.float16
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    assert 1.0 < scaler.get_scale() < 2.0**24  # float16 ends at 65504
    assert losses[-1] < losses[0] / 2


def test_a_step_reads_once_and_runs_one_program() -> None:
    model = _model().to("xla")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("xla")
    x = torch.ones(3, 4, device="xla")
    for step in range(6):
        metrics.clear()
        optimizer.zero_grad()
        with torch.autocast("xla"):
            loss = model(x).sum()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        assert metrics.value("TransferFromDevice") == 0
        scaler.step(optimizer)
        scaler.update()
        assert metrics.value("TransferFromDevice") == 1
        assert metrics.value("xla::_amp_foreach_non_finite_check_and_unscale") == 1
        if step > 2:
            assert metrics.value("ExecuteComputation") == 1
            assert metrics.value("UncachedCompile") == 0


def test_state_dict_and_pickle() -> None:
    model = _model().to("xla")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("xla", init_scale=64.0, growth_interval=3)
    for _ in range(4):
        optimizer.zero_grad()
        scaler.scale(model(torch.ones(1, 4, device="xla")).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    state = {"scale": 128.0, "growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 3, "_growth_tracker": 1}
    assert scaler.state_dict() == state
    for other in (torch.amp.GradScaler("xla"), torch.amp.GradScaler("xla"), torch.amp.GradScaler("cpu")):
        if other._device == "xla":
            other.scale(torch.ones((), device="xla"))  # its tensors are made now, before the state comes
        other.load_state_dict(state)
        assert other.state_dict() == state
    assert pickle.loads(pickle.dumps(scaler)).state_dict() == state


def test_update_to_a_given_scale() -> None:
    scaler = torch.amp.GradScaler("xla")
    scaler.scale(torch.ones((), device="xla"))
    scaler.update(8.0)
    assert scaler.get_scale() == 8.0
    scaler.update(torch.tensor(16.0, device="xla"))
    assert scaler.get_scale() == 16.0


def test_scale_of_several_outputs_and_optimizers() -> None:
    a, b = (torch.ones(2, device="xla", requires_grad=True) for _ in range(2))
    first, second = torch.optim.SGD([a], lr=1.0), torch.optim.SGD([b], lr=1.0)
    scaler = torch.amp.GradScaler("xla", init_scale=4.0)
    x, (y,) = scaler.scale([a.sum(), (b.sum() * float("inf"),)])  # type: ignore[arg-type]
    assert x.item() == 8.0
    (x + y).backward()
    scaler.step(first)
    scaler.step(second)
    scaler.update()
    torch.testing.assert_close(a.cpu(), torch.zeros(2))
    torch.testing.assert_close(b.cpu(), torch.ones(2))
    assert scaler.get_scale() == 2.0


def test_refusals_and_disabled() -> None:
    weight = torch.ones(2, device="xla", dtype=torch.float16, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=1.0)
    scaler = torch.amp.GradScaler("xla")
    scaler.scale(weight.sum()).backward()
    with pytest.raises(ValueError, match="Attempting to unscale FP16 gradients"):
        scaler.unscale_(optimizer)
    disabled = torch.amp.GradScaler("xla", enabled=False)
    loss = weight.sum()
    assert disabled.scale(loss) is loss
    assert disabled.state_dict() == {}


GRADIENTS = [
    [torch.tensor([1.0, -3.0, 1e30])],
    [torch.tensor([1.0, float("nan")]), torch.tensor([2.0])],
    [torch.tensor([[1.0, 2.0], [3.0, 4.0]]).t(), torch.tensor(-float("inf")), torch.zeros(0)],
    [torch.tensor([3e4, 6e-8, 1.0], dtype=torch.float16), torch.tensor([3.0], dtype=torch.bfloat16)],
    [torch.tensor([1e300, 1 / 3], dtype=torch.float64)],
    [],
]


@pytest.mark.parametrize("gradients", GRADIENTS)
@pytest.mark.parametrize("inverse", [1.0, 1 / 3, 4.0, float("inf")])
@pytest.mark.parametrize("found", [0.0, 1.0])
def test_unscale(gradients: list[torch.Tensor], inverse: float, found: float) -> None:
    results = []
    for device in ("cpu", "xla"):
        options = [{"dtype": gradient.dtype, "device": device} for gradient in gradients]
        mine = [torch.empty_strided(x.shape, x.stride(), **o).copy_(x) for x, o in zip(gradients, options, strict=True)]
        found_inf = torch.tensor(found, device=device)
        torch._amp_foreach_non_finite_check_and_unscale_(mine, found_inf, torch.tensor(inverse, device=device))
        results.append([*mine, found_inf])
    for expected, actual in zip(*results, strict=True):
        assert actual.stride() == expected.stride()
        torch.testing.assert_close(actual.cpu(), expected, rtol=0, atol=0, equal_nan=True)


SCALES, TRACKERS, FOUND = (1 / 3, 65536.0, 3e38), (0, 1), (0.0, 1.0, float("nan"))


@pytest.mark.parametrize("factors", [(2.0, 0.5), (1.0001, 0.3)])
def test_update_scale(factors: tuple[float, float]) -> None:
    for scale, tracker, found in itertools.product(SCALES, TRACKERS, FOUND):
        results = []
        for device in ("cpu", "xla"):
            state = torch.tensor(scale, device=device), torch.tensor(tracker, dtype=torch.int32, device=device)
            torch._amp_update_scale_(*state, torch.tensor(found, device=device), *factors, 2)
            results.append([x.cpu() for x in state])
        torch.testing.assert_close(results[1], results[0], rtol=0, atol=0)


@pytest.mark.parametrize(
    "call",
    [
        lambda d: _unscale([torch.zeros(2, dtype=torch.int32, device=d)], torch.zeros((), device=d), 1, d),
        lambda d: _unscale([torch.zeros(2, device=d)], torch.zeros(2, device=d), 1, d),
        lambda d: _unscale([torch.zeros(2, device=d)], torch.zeros((), device=d), 2, d),
        lambda d: _unscale([torch.zeros(2, device=d)], torch.zeros((), dtype=torch.float64, device=d), 1, d),
        lambda d: _update(torch.zeros(2, device=d), torch.zeros(1, dtype=torch.int32, device=d), d),
        lambda d: _update(torch.zeros(1, device=d), torch.zeros(1, device=d), d),
        lambda d: _update(torch.zeros(1, dtype=torch.float64, device=d), torch.zeros(1, device=d), d),
    ],
)
def test_errors_are_those_of_the_cpu(call: Any) -> None:
    with pytest.raises((RuntimeError, NotImplementedError)) as expected:
        call("cpu")
    with pytest.raises(expected.type) as found:
        call("xla")
    assert str(found.value).splitlines()[0] == str(expected.value).splitlines()[0]


def _unscale(gradients: list[torch.Tensor], found_inf: torch.Tensor, inverses: int, device: str) -> None:
    torch._amp_foreach_non_finite_check_and_unscale_(gradients, found_inf, torch.ones(inverses, device=device))


def _update(scale: torch.Tensor, tracker: torch.Tensor, device: str) -> None:
    torch._amp_update_scale_(scale, tracker, torch.zeros((), device=device), 2.0, 0.5, 2)


def test_gradients_of_another_device() -> None:
    with pytest.raises(RuntimeError, match="at least two devices, cpu and xla:0"):
        _unscale([torch.zeros(())], torch.zeros((), device="xla"), 1, "xla")


@pytest.mark.parametrize("device", ["cpu", "xla"])
def test_compiled(device: str) -> None:
    @torch.compile(backend="openxla", fullgraph=True)
    def step(gradients: list[torch.Tensor], scale: torch.Tensor, tracker: torch.Tensor) -> torch.Tensor:
        found_inf = torch.zeros((), device=scale.device)
        torch._amp_foreach_non_finite_check_and_unscale_(gradients, found_inf, scale.double().reciprocal().float())
        torch._amp_update_scale_(scale, tracker, found_inf, 2.0, 0.5, 2)
        return found_inf

    gradients = [torch.ones(3, device=device), torch.ones(2, dtype=torch.bfloat16, device=device)]
    scale, tracker = torch.tensor(8.0, device=device), torch.tensor(1, dtype=torch.int32, device=device)
    assert step(gradients, scale, tracker).item() == 0.0
    assert [gradient.tolist() for gradient in gradients] == [[0.125] * 3, [0.125] * 2]
    assert (scale.item(), tracker.item()) == (16.0, 0)
    gradients[1][0] = float("inf")
    assert step(gradients, scale, tracker).item() == 1.0
    assert (scale.item(), tracker.item()) == (8.0, 0)
    lazy_runtime.sync()
