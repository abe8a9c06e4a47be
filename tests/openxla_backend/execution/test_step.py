"""A training step is one execution, whichever way it is compiled."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import nn

import lazy_runtime
from tests.openxla_backend.helpers import counting

# torch's own, while Dynamo traces: it looks at `.grad` of any tensor, and at all there is of a class
pytestmark = [
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"),
    pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated"),
]

WORK = ("ExecuteComputation", "UncachedCompile", "DynamoExtractCompiledGraph")
ONE = {"ExecuteComputation": 1, "UncachedCompile": 0, "DynamoExtractCompiledGraph": 0}
FORMS = ("model", "step", "lazy")
STEPS = 5

OPTIMIZERS = {
    "sgd": functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9),
    "adamw": functools.partial(torch.optim.AdamW, lr=0.01),
}


@pytest.fixture(autouse=True)
def double():
    # a compiled AdamW counts its steps in the default dtype, on any accelerator
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 5))


def batches(count: int = STEPS, size: int = 4) -> list[tuple[torch.Tensor, torch.Tensor]]:
    torch.manual_seed(1)
    return [(torch.randn(size, 3, 8, 8), torch.randint(0, 5, (size,))) for _ in range(count)]


class Trainer:
    """An ordinary training step, compiled in one of the three forms, or eager."""

    def __init__(self, form: str | None, optimizer: str = "sgd", model: nn.Module | None = None):
        self.device = "cpu" if form is None else "xla"
        self.model = (model or net()).to(self.device)
        self.call = torch.compile(self.model, backend="openxla") if form == "model" else self.model
        self.optimizer = OPTIMIZERS[optimizer](self.model.parameters())
        if form == "step":
            self.step = torch.compile(self.step, backend="openxla")
        elif form == "lazy":
            self.step = lazy_runtime.compile(self.step, trace_after=0)

    def step(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        self.optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self.call(x), y)
        loss.backward()
        self.optimizer.step()
        return loss

    def __call__(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.step(x.to(self.device), y.to(self.device))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("form", FORMS)
def test_losses_and_one_execution(form, optimizer):
    eager, trainer = Trainer(None, optimizer), Trainer(form, optimizer)
    for number, (x, y) in enumerate(batches()):
        with counting(*WORK) as counts:
            loss = trainer(x, y).item()
        assert number < 2 or counts == ONE
        torch.testing.assert_close(loss, eager(x, y).item(), rtol=1e-12, atol=0.0)
    for name, value in eager.model.state_dict().items():
        torch.testing.assert_close(trainer.model.state_dict()[name].cpu(), value)


@pytest.mark.parametrize("form", FORMS)
def test_no_read_at_all(form):
    eager, trainer = Trainer(None), Trainer(form)
    data = batches()
    expected = [eager(x, y).item() for x, y in data]
    losses = []
    for number, (x, y) in enumerate(data):
        with counting(*WORK) as counts:
            losses.append(trainer(x, y).detach())
        assert number < 3 or counts == ONE
    torch.testing.assert_close([loss.item() for loss in losses], expected, rtol=1e-12, atol=0.0)


@pytest.mark.parametrize("form", FORMS)
def test_a_sync_each_step(form):
    trainer = Trainer(form)
    for number, (x, y) in enumerate(batches()):
        with counting(*WORK) as counts:
            trainer(x, y)
            lazy_runtime.sync()
        assert number < 2 or counts == ONE


def test_gradient_accumulation():
    """Several forward and backward passes, one step: one execution."""
    eager, trainer = Trainer(None), Trainer("model")
    data = batches(9)
    for trained in (eager, trainer):
        for number, (x, y) in enumerate(data):
            with counting(*WORK) as counts:
                x, y = x.to(trained.device), y.to(trained.device)
                (nn.functional.cross_entropy(trained.call(x), y) / 3).backward()
                last = number % 3 == 2
                if last:
                    trained.optimizer.step()
                    trained.optimizer.zero_grad()
            if trained is trainer and number >= 6:
                assert counts == {**ONE, "ExecuteComputation": int(last)}
    for name, value in eager.model.state_dict().items():
        torch.testing.assert_close(trainer.model.state_dict()[name].cpu(), value)


def test_evaluation_between_steps():
    """It runs at once, and on the updated parameters."""
    eager, trainer = Trainer(None), Trainer("model")
    x, y = batches(1)[0]
    for _ in range(3):
        eager(x, y)
        trainer(x, y)
        results = []
        for trained in (eager, trainer):
            trained.model.eval()
            with torch.no_grad():
                results.append(trained.call(x.to(trained.device)).cpu())
            trained.model.train()
        torch.testing.assert_close(results[1], results[0])


def test_evaluation_within_a_step_executes_nothing_else():
    trainer = Trainer("model")
    other = torch.compile(nn.Linear(3, 2).to("xla"), backend="openxla")
    z = torch.randn(4, 3, device="xla")
    with torch.no_grad():
        other(z)
    x, y = (each.to("xla") for each in batches(1)[0])
    loss = nn.functional.cross_entropy(trainer.call(x), y)
    with torch.no_grad(), counting("ExecuteComputation") as counts:
        other(z)
    assert counts["ExecuteComputation"] == 1
    with counting("ExecuteComputation") as counts:
        loss.backward()
        trainer.optimizer.step()
    assert counts["ExecuteComputation"] == 1


def test_an_optimizer_that_is_none_of_torchs():
    """With no read and no hook, the forward pass on updated parameters is what ends the step before."""
    model = net().to("xla")
    call = torch.compile(model, backend="openxla")
    for number, (x, y) in enumerate(batches()):
        with counting(*WORK) as counts:
            nn.functional.cross_entropy(call(x.to("xla")), y.to("xla")).backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter -= 0.1 * parameter.grad
                    parameter.grad = None
        assert number < 3 or counts == ONE


def test_the_last_smaller_batch_compiles_once():
    trainer = Trainer("model")
    for size in (4, 4, 4):
        trainer(*batches(1, size)[0])
    with counting("UncachedCompile") as counts:
        for size in (3, 4):  # Dynamo has made the size an argument, and both sizes are traced anew
            trainer(*batches(1, size)[0])
    assert counts["UncachedCompile"] == 1
    for size in (4, 3, 4, 3):
        with counting(*WORK) as counts:
            trainer(*batches(1, size)[0])
        assert counts == ONE


def test_a_failure_names_the_line_inside_the_graph():
    embedding = nn.Embedding(3, 2).to("xla")

    def look_up(x):
        return embedding(x) * 2

    compiled = torch.compile(look_up, backend="openxla")
    y = compiled(torch.tensor([5], device="xla"))
    with pytest.raises(IndexError, match=r"aten::embedding.*test_step\.py"):
        y.sum().item()


def test_random_numbers_differ_from_step_to_step_and_follow_the_seed():
    model = torch.compile(nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5)).to("xla"), backend="openxla")
    x = torch.ones(4, 8, device="xla")

    def run() -> list[torch.Tensor]:
        torch.manual_seed(3)
        return [model(x).detach().cpu() for _ in range(2)]

    first, second = run(), run()
    torch.testing.assert_close(first, second, rtol=0.0, atol=0.0)
    assert not torch.equal(first[0], first[1])


def test_two_models_with_two_optimizers():
    """As a GAN trains: each optimizer's step ends a program."""
    torch.manual_seed(0)
    made = [nn.Linear(2, 6), nn.Linear(6, 1)]
    histories = []
    for device in ("cpu", "xla"):
        torch.manual_seed(0)
        generator, judge = (nn.Linear(part.in_features, part.out_features).to(device) for part in made)
        for mine, part in zip((generator, judge), made, strict=True):
            mine.load_state_dict(part.state_dict())
        call = [torch.compile(m, backend="openxla") if device == "xla" else m for m in (generator, judge)]
        optimizers = [torch.optim.Adam(m.parameters(), lr=0.05) for m in (generator, judge)]
        history = []
        for number in range(4):
            z = torch.linspace(-1, 1, 6).reshape(3, 2).to(device)
            with counting(*WORK) as counts:
                optimizers[1].zero_grad()
                judged = call[1](call[0](z).detach()).square().mean()
                judged.backward()
                optimizers[1].step()
                optimizers[0].zero_grad()
                made_up = (call[1](call[0](z)) - 1).square().mean()
                made_up.backward()
                optimizers[0].step()
            if device == "xla" and number == 3:
                assert counts == {**ONE, "ExecuteComputation": 2}
            history += [judged.item(), made_up.item()]
        histories.append(history)
    torch.testing.assert_close(histories[1], histories[0])


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_backward_pass_that_dynamo_traces(optimizer, monkeypatch):
    """Forward and backward pass are one graph, and no autograd's; the step is one execution all the same."""
    eager, trainer = Trainer(None, optimizer), Trainer(None, optimizer)
    trainer.device = "xla"
    trainer.model.to("xla")
    trainer.optimizer = OPTIMIZERS[optimizer](trainer.model.parameters())
    passes = []
    run = torch.autograd.graph._engine_run_backward

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = nn.functional.cross_entropy(trainer.model(x), y)
        loss.backward()
        trainer.optimizer.step()
        trainer.optimizer.zero_grad()
        return loss

    trainer.step = torch.compile(step, backend="openxla")
    monkeypatch.setattr(torch.autograd, "_engine_run_backward", lambda *a, **k: passes.append(1) or run(*a, **k))
    for number, (x, y) in enumerate(batches()):
        passes.clear()
        with counting(*WORK) as counts:
            loss = trainer(x, y)
        assert number < 2 or (counts, passes) == (ONE, [])
        torch.testing.assert_close(loss.item(), eager(x, y).item(), rtol=1e-12, atol=0.0)
    for name, value in eager.model.state_dict().items():
        torch.testing.assert_close(trainer.model.state_dict()[name].cpu(), value)


# ---- within regions of lazy_runtime.compile


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_compiled_step_in_a_region(optimizer):
    """The region's promises, and Dynamo's guards in place of recording."""
    eager, trainer = Trainer(None, optimizer), Trainer("step", optimizer)
    trainer.step = lazy_runtime.compile(trainer.step, full_graph=True)
    for number, (x, y) in enumerate(batches()):
        with counting(*WORK, "aten::convolution") as counts:
            loss = trainer(x, y)
        assert counts["ExecuteComputation"] == 1
        assert number not in (2, 3) or counts == {**ONE, "aten::convolution": 0}
        assert number < 4 or counts["UncachedCompile"] == 1
        torch.testing.assert_close(loss.item(), eager(x, y).item(), rtol=1e-12, atol=0.0)
        if number == 3:  # what the step depends on changes
            for trained in (eager, trainer):
                trained.model[4].weight.requires_grad_(False)
                trained.model[4].weight.grad = None


def test_compiled_calls_in_a_region_are_one_program():
    double, scale = (torch.compile(f, backend="openxla") for f in (lambda x: x * 2 + 1, lambda x: x.sin() * 3))

    @lazy_runtime.compile
    def both(x: torch.Tensor) -> torch.Tensor:
        return scale(double(x) - 1).cos() + double(x)

    x = torch.linspace(0, 1, 5, device="xla")
    for number in range(3):
        lazy_runtime.sync()
        with counting(*WORK) as counts:
            result = both(x)
        assert number == 0 or counts == ONE
        assert counts["ExecuteComputation"] == 1
        y = x.cpu()
        torch.testing.assert_close(result.cpu(), ((y * 2).sin() * 3).cos() + y * 2 + 1)


def test_a_read_between_compiled_calls_of_a_full_graph_is_refused():
    double = torch.compile(lambda x: x * 2 + 1, backend="openxla")

    @lazy_runtime.compile(full_graph=True)
    def reads(x: torch.Tensor) -> torch.Tensor:
        y = double(x)
        return y if y.sum().item() > 0 else -y

    with pytest.raises(
        RuntimeError, match=r"reads is compiled with full_graph=True and a value is read at .*test_step"
    ):
        reads(torch.ones(3, device="xla"))


def test_reports_count_the_operators_of_graphs_that_are_part_of_a_step():
    met = lazy_runtime.debug.metrics
    trainer = Trainer("step")
    (batch,) = batches(1)
    for _ in range(3):
        trainer(*batch).item()
    met.clear_all()
    trainer(*batch)
    samples, size, _ = met.metric_data("TensorsGraphSize")
    assert samples == 1
    assert size > 30
    assert size in [found.operators for found in lazy_runtime.debug.compilations()]  # an earlier test may have made it
    read = sum(found.operators for found in lazy_runtime.debug.syncs())
    Trainer("model").call(batch[0].to("xla")).sum().item()
    assert sum(found.operators for found in lazy_runtime.debug.syncs()) > read + 5
