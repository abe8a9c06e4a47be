"""A training step in `lazy_runtime.compile`: traced by Dynamo where it can be, recorded where it cannot, and what it
depends on may change.
"""

from __future__ import annotations

import copy
import functools
import gc
import io
import logging
import os
import random
import re
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import lazy_runtime
from lazy_runtime import regions
from lazy_runtime.common import metrics, output
from lazy_runtime.platform import replicas
from lazy_runtime.processes import process_job
from tests.openxla_backend.helpers import counting
from tests.openxla_backend.trained import STEPS, Trained, batches, both, run, zero_grad_first, zero_grad_last

#: From its first call on.
traced = functools.partial(lazy_runtime.compile, trace_after=0)
both = functools.partial(both, compile=traced)
sgd = functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9)


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    metrics.clear()
    # a compiled AdamW counts its steps in the default dtype, on any accelerator
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def is_traced() -> bool:
    """Whether the last step was not recorded."""
    return not metrics.value("RegionNotTraced")


def records(compiled: Trained) -> bool:
    """Whether a step is recorded: a traced one meets no operators."""
    with counting("xla::addmm") as counts:
        compiled.step(batches(1)[0].to("xla"))
    return bool(counts["xla::addmm"])


# ---- when it is traced


@pytest.mark.parametrize("optimizer", [sgd, functools.partial(torch.optim.AdamW, lr=0.01)], ids=["sgd", "adamw"])
def test_the_first_steps_are_recorded(optimizer):
    eager, compiled = both(zero_grad_last, optimizer, compile=functools.partial(lazy_runtime.compile, trace_after=3))
    found = []
    for x in batches(6):
        with counting("xla::addmm", "ExecuteComputation") as counts:
            loss = compiled.step(x.to("xla"))
        torch.testing.assert_close(loss.detach().cpu(), eager.step(x).detach())
        assert counts["ExecuteComputation"] == 1
        found.append(bool(counts["xla::addmm"]))
    assert found[:3] == [True] * 3
    assert not any(found[4:])  # a trace meets operators too
    torch.testing.assert_close(compiled.state(), eager.state())


def test_calls_of_each_kind_are_counted():
    _, compiled = both(zero_grad_last, sgd, compile=functools.partial(lazy_runtime.compile, trace_after=2))
    large, small = torch.ones(6, 4, device="xla"), torch.ones(3, 4, device="xla")
    for x in (large, small, large, small):
        compiled.step(x)
    assert not torch._dynamo.utils.counters["stats"]
    compiled.step(large)
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    assert graphs == 1
    compiled.step(large)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == graphs


def test_steps_of_ever_other_shapes_are_not_traced(monkeypatch):
    monkeypatch.setattr(regions.traced, "_MOST_KINDS", 2)
    step = Trained("xla", zero_grad_last).step
    call = regions.traced.Traced(step, "step", trace_after=2)
    for size in (2, 3, 4, 2, 3, 4, 2, 3, 4):
        call(torch.ones(size, 4, device="xla"))
        assert len(call._calls) <= 2
    assert not torch._dynamo.utils.counters["stats"]


def test_a_step_that_is_never_traced():
    _, compiled = both(zero_grad_last, sgd, compile=functools.partial(lazy_runtime.compile, trace_after=None))
    for x in batches(4):
        compiled.step(x.to("xla"))
    assert records(compiled)
    assert not torch._dynamo.utils.counters["stats"]


def test_the_first_steps_are_recorded_by_default():
    _, compiled = both(zero_grad_last, sgd, compile=lazy_runtime.compile)
    for x in batches(4):
        compiled.step(x.to("xla"))
    assert records(compiled)
    with pytest.raises(ValueError, match="trace_after must be at least 0, got -1"):
        lazy_runtime.compile(compiled.step, trace_after=-1)


# ---- what is traced


@pytest.mark.parametrize("step", [zero_grad_last, zero_grad_first], ids=lambda step: step.__name__)
@pytest.mark.parametrize("optimizer", [sgd, functools.partial(torch.optim.AdamW, lr=0.01)], ids=["sgd", "adamw"])
def test_a_step_is_traced(step, optimizer):
    eager, compiled = both(step, optimizer)
    run(eager, compiled)
    assert is_traced()
    assert not records(compiled)


def test_in_eager_mode():
    lazy_runtime.experimental.eager_mode(True)
    try:
        eager, compiled = both(zero_grad_last)
        run(eager, compiled)
        assert is_traced()
    finally:
        lazy_runtime.experimental.eager_mode(False)


def test_methods_and_functions_with_defaults():
    class Trainer(Trained):
        def __init__(self, device: str):
            super().__init__(device, zero_grad_last)
            self.scale = 2.0

        def train(self, x: torch.Tensor, *, power: int = 2) -> torch.Tensor:
            loss = (self.scale * self.model(x)).pow(power).mean()
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            return loss

    eager, compiled = Trainer("cpu"), Trainer("xla")
    eager.step, compiled.step = eager.train, traced(compiled.train)
    run(eager, compiled)
    assert is_traced()
    for trained in (eager, compiled):
        trained.scale = 3.0
    run(eager, compiled)
    assert is_traced()
    # an integer that changes is a number to Dynamo, which may be another at each step
    eager.step, compiled.step = (functools.partial(trained.step, power=4) for trained in (eager, compiled))
    run(eager, compiled)
    assert not is_traced()


def test_what_a_region_promises():
    trained = Trained("xla", zero_grad_last)
    step = traced(trained.step, full_graph=True, max_different_graphs=3, name="mine")
    for size in (5, 5, 4, 5, 4):  # the first makes the momentum
        step(torch.randn(size, 4).to("xla"))
    with pytest.raises(RuntimeError, match="mine has given 4 different graphs and may give 3"):
        step(torch.randn(3, 4).to("xla"))
    assert is_traced()


def test_compile_options():
    trained = Trained("xla", zero_grad_last)
    step = traced(trained.step, custom_compile_options={"xla_nothing": 1})
    with pytest.raises(ValueError, match="XLA refuses 'xla_nothing'"):
        step(batches(1)[0].to("xla"))


def test_batches_of_several_sizes():
    eager, compiled = both(zero_grad_last)
    x = batches(1)[0]
    for size in (5, 5, 5, 3, 4, 5, 3):
        torch.testing.assert_close(compiled.step(x[:size].to("xla")).detach().cpu(), eager.step(x[:size]).detach())
        torch.testing.assert_close(compiled.state(), eager.state())
    with counting("UncachedCompile") as counts:
        for size in (3, 4, 5):
            compiled.step(x[:size].to("xla"))
    assert counts["UncachedCompile"] == 0
    assert is_traced()


def test_dropout_follows_the_seed():
    def step(trained: Trained, x: torch.Tensor) -> torch.Tensor:
        loss = nn.functional.dropout(trained.model(x)).square().mean()
        loss.backward()
        trained.optimizer.zero_grad()
        return loss

    _, compiled = both(step)
    x = batches(1)[0].to("xla")
    torch.manual_seed(3)
    first = [compiled.step(x).item() for _ in range(3)]
    torch.manual_seed(3)
    assert [compiled.step(x).item() for _ in range(3)] == first
    assert len(set(first)) == 3
    assert is_traced()


# ---- what it depends on changes


def change_forward_of_the_class(trained: Trained) -> Callable[[], None]:
    class Shifted(nn.Tanh):
        pass

    trained.model[1].__class__ = Shifted
    return lambda: setattr(Shifted, "forward", lambda self, x: x.tanh() + 1)


def change_forward_of_the_object(trained: Trained) -> Callable[[], None]:
    return lambda: setattr(trained.model[1], "forward", torch.sigmoid)


def add_a_hook(trained: Trained) -> Callable[[], None]:
    return lambda: trained.model[1].register_forward_hook(lambda module, args, result: 2 * result)


def add_a_hook_before(trained: Trained) -> Callable[[], None]:
    return lambda: trained.model[1].register_forward_pre_hook(lambda module, args: (2 * args[0],))


def remove_a_hook(trained: Trained) -> Callable[[], None]:
    handle = trained.model[1].register_forward_hook(lambda module, args, result: 2 * result)
    return handle.remove


def exchange_a_hook(trained: Trained) -> Callable[[], None]:
    handle = trained.model[1].register_forward_hook(lambda module, args, result: 2 * result)

    def change() -> None:
        handle.remove()
        trained.model[1].register_forward_hook(lambda module, args, result: 3 * result)

    return change


def evaluate(trained: Trained) -> Callable[[], None]:
    return lambda: trained.model.eval()


def freeze(trained: Trained) -> Callable[[], None]:
    return lambda: trained.model[0].bias.requires_grad_(False)


def thaw(trained: Trained) -> Callable[[], None]:
    trained.model[0].bias.requires_grad_(False)
    return lambda: trained.model[0].bias.requires_grad_(True)


def hook_a_parameter(trained: Trained) -> Callable[[], None]:
    return lambda: trained.model[0].weight.register_hook(lambda gradient: 3 * gradient)


def exchange_a_layer(trained: Trained) -> Callable[[], None]:
    return lambda: trained.model.__setitem__(1, nn.ReLU())


def exchange_a_parameter(trained: Trained) -> Callable[[], None]:
    return lambda: setattr(trained.model[3], "bias", None)


def exchange_the_optimizer(trained: Trained) -> Callable[[], None]:
    return lambda: setattr(trained, "optimizer", torch.optim.Adam(trained.model.parameters(), lr=0.01))


def change_momentum(trained: Trained) -> Callable[[], None]:
    return lambda: trained.optimizer.param_groups[0].update(momentum=0.5, weight_decay=0.1)


def change_a_setting_of_a_layer(trained: Trained) -> Callable[[], None]:
    return lambda: setattr(trained.model[2], "momentum", 0.5)


def add_a_parameter_group(trained: Trained) -> Callable[[], None]:
    trained.optimizer = sgd(trained.model[0].parameters())
    return lambda: trained.optimizer.add_param_group({"params": list(trained.model[3].parameters()), "lr": 0.5})


def load_the_optimizers_state(trained: Trained) -> Callable[[], None]:
    return lambda: trained.optimizer.load_state_dict(copy.deepcopy(trained.optimizer.state_dict()))


def load_the_models_state(trained: Trained) -> Callable[[], None]:
    return lambda: trained.model.load_state_dict({n: v * 0.5 for n, v in trained.model.state_dict().items()})


CHANGES = (
    change_forward_of_the_class,
    change_forward_of_the_object,
    add_a_hook,
    add_a_hook_before,
    remove_a_hook,
    exchange_a_hook,
    evaluate,
    freeze,
    thaw,
    hook_a_parameter,
    exchange_a_layer,
    exchange_a_parameter,
    exchange_the_optimizer,
    change_momentum,
    change_a_setting_of_a_layer,
    add_a_parameter_group,
    load_the_optimizers_state,
    load_the_models_state,
)


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_change_is_noticed(change):
    eager, compiled = both(zero_grad_first)
    changes = [change(trained) for trained in (eager, compiled)]
    run(eager, compiled, is_one=False)
    for each in changes:
        each()
    run(eager, compiled, is_one=False)


def test_a_hook_of_all_modules():
    eager, compiled = both(zero_grad_first)
    run(eager, compiled)

    def double(module: nn.Module, args: Any, result: Any) -> Any:
        return 2 * result if isinstance(module, nn.Tanh) else None

    handle = nn.modules.module.register_module_forward_hook(double)
    try:
        run(eager, compiled, is_one=False)
    finally:
        handle.remove()
    run(eager, compiled, is_one=False)


def test_the_environment(monkeypatch):
    def step(trained: Trained, x: torch.Tensor) -> torch.Tensor:
        loss = trained.loss(x) * (2 if os.environ.get("TWICE") else 1) * (3 if os.getenv("THRICE") == "1" else 1)
        loss.backward()
        trained.optimizer.step()
        trained.optimizer.zero_grad()
        return loss

    eager, compiled = both(step)
    run(eager, compiled)
    monkeypatch.setenv("TWICE", "1")
    run(eager, compiled)
    monkeypatch.setenv("THRICE", "1")
    run(eager, compiled)
    monkeypatch.delenv("TWICE")
    run(eager, compiled)
    assert is_traced()


def test_the_functions_code():
    def step(trained: Trained, x: torch.Tensor, power: int = 2) -> torch.Tensor:
        loss = trained.model(x).pow(power).mean()
        loss.backward()
        trained.optimizer.step()
        trained.optimizer.zero_grad()
        return loss

    eager, compiled = both(step)
    run(eager, compiled)
    step.__defaults__ = (4,)
    run(eager, compiled)
    step.__code__ = zero_grad_first.__code__
    run(eager, compiled)


@pytest.mark.parametrize("kind", [float, int])
def test_a_number_that_changes_at_each_step(kind):
    """As an argument it is a number of the recorded program, but a constant to Dynamo."""

    def step(trained: Trained, x: torch.Tensor) -> torch.Tensor:
        trained.number = trained.number + kind(1)
        loss = trained.loss(x) * trained.number
        loss.backward()
        trained.optimizer.step()
        trained.optimizer.zero_grad()
        return loss

    eager, compiled = both(step)
    for trained in (eager, compiled):
        trained.number = kind(1)
    run(eager, compiled, is_one=False, count=14)
    with counting("UncachedCompile") as counts:
        run(eager, compiled, is_one=False)
    assert counts["UncachedCompile"] == 0
    assert eager.number == compiled.number


def test_a_schedule():
    eager, compiled = both(zero_grad_last, functools.partial(torch.optim.AdamW, lr=0.01))
    schedulers = [torch.optim.lr_scheduler.CosineAnnealingLR(t.optimizer, 10) for t in (eager, compiled)]
    for number, x in enumerate(batches(12)):
        eager.step(x)
        with counting("ExecuteComputation", "UncachedCompile") as counts:
            compiled.step(x.to("xla"))
        assert number < 3 or counts == {"ExecuteComputation": 1, "UncachedCompile": 0}
        for scheduler in schedulers:
            scheduler.step()
        torch.testing.assert_close(compiled.state(), eager.state())
    assert is_traced()


# ---- what is recorded


def test_what_is_done_besides():
    """What Dynamo would do once, or leave out, is done at each call."""
    said: dict[str, list[Any]] = {"cpu": [], "xla": []}

    class Says:
        """Dynamo cannot look into it."""

        @torch.compiler.disable
        def __call__(self, trained: Trained) -> None:
            said[trained.device].append(len(said[trained.device]))

    says = Says()

    def step(trained: Trained, x: torch.Tensor) -> torch.Tensor:
        loss = trained.loss(x)
        loss.backward()
        trained.optimizer.step()
        trained.optimizer.zero_grad()
        says(trained)
        trained.count = getattr(trained, "count", 0) + 1
        return loss

    eager, compiled = both(step)
    run(eager, compiled)
    assert said["xla"] == list(range(STEPS)) == said["cpu"]
    assert compiled.count == STEPS
    assert not is_traced()


def test_side_effects_in_python():
    def step(trained: Trained, x: torch.Tensor) -> torch.Tensor:
        loss = trained.loss(x)
        loss.backward()
        trained.optimizer.step()
        trained.optimizer.zero_grad()
        trained.losses.append(loss.detach())
        trained.sizes[len(trained.losses)] = x.shape[0]
        return loss

    eager, compiled = both(step)
    for trained in (eager, compiled):
        trained.losses, trained.sizes = [], {}
    run(eager, compiled, is_one=False)
    torch.testing.assert_close([loss.cpu() for loss in compiled.losses], eager.losses)
    assert compiled.sizes == eager.sizes == dict.fromkeys(range(1, STEPS + 1), 5)


class Cached:
    """What a step may look up, and write to."""

    calls = 0

    @property
    def scale(self) -> float:
        self.calls += 1
        return 2.0


def read_a_file(seen: list[Any]) -> None:
    seen.append(Path(__file__).read_text()[:3])


def look_at_the_time(seen: list[Any]) -> None:
    seen.append(time.time() > 0)


def draw(seen: list[Any]) -> None:
    seen.append(random.random())


def log(seen: list[Any]) -> None:
    handler = logging.Handler()
    handler.emit = lambda record: seen.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("a step")
    logger.addHandler(handler)
    logger.warning("stepped")
    logger.removeHandler(handler)


def count_metrics(seen: list[Any]) -> None:
    metrics.count("Mine")
    seen.append(metrics.value("Mine"))


def count_in_an_object(seen: list[Any]) -> None:
    seen.append((counted.scale, counted.calls))


counted = Cached()


@pytest.mark.parametrize("do", [read_a_file, look_at_the_time, draw, log, count_metrics, count_in_an_object])
def test_what_python_does_is_done_at_each_call(do):
    def step(trained: Trained, x: torch.Tensor) -> torch.Tensor:
        loss = trained.loss(x)
        do(trained.seen)
        loss.backward()
        trained.optimizer.step()
        trained.optimizer.zero_grad()
        return loss

    eager, compiled = both(step)
    for trained in (eager, compiled):
        trained.seen = []
        counted.calls = 0
        metrics.clear()
        random.seed(0)
        for x in batches():
            trained.step(x.to(trained.device))
    assert compiled.seen == eager.seen
    assert len(compiled.seen) == STEPS


def test_printing(capsys):
    def step(trained: Trained, x: torch.Tensor) -> torch.Tensor:
        loss = trained.loss(x)
        loss.backward()
        trained.optimizer.step()
        trained.optimizer.zero_grad()
        print("stepped on", trained.device)
        return loss

    eager, compiled = both(step)
    run(eager, compiled)
    assert capsys.readouterr().out == "stepped on cpu\nstepped on xla\n" * STEPS


def test_a_read():
    def step(trained: Trained, x: torch.Tensor) -> torch.Tensor:
        loss = trained.loss(x)
        if loss.item() > 0:
            loss = loss * 2
        loss.backward()
        trained.optimizer.step()
        trained.optimizer.zero_grad()
        return loss

    eager, compiled = both(step, functools.partial(torch.optim.AdamW, lr=0.01))
    run(eager, compiled, is_one=False)
    assert not is_traced()
    assert all(state["step"].device.type == "cpu" for state in compiled.optimizer.state.values())


def test_an_exception_is_the_users():
    def step(trained: Trained, x: torch.Tensor) -> torch.Tensor:
        if len(x) == 3:
            raise KeyError("three")
        return zero_grad_last(trained, x)

    eager, compiled = both(step)
    run(eager, compiled)
    for trained in (eager, compiled):
        with pytest.raises(KeyError, match="three") as raised:
            trained.step(batches(1)[0][:3].to(trained.device))
        assert raised.value.__context__ is None
    run(eager, compiled)


def test_disabled():
    eager, compiled = both(torch.compiler.disable(zero_grad_last))
    run(eager, compiled)
    assert records(compiled)


def test_without_gradients_nothing_is_decided():
    eager, compiled = both(lambda trained, x: zero_grad_last(trained, x) if trained.is_training else trained.loss(x))
    for is_training in (False, True, False):
        for trained in (eager, compiled):
            trained.is_training = is_training
        with torch.set_grad_enabled(is_training):
            run(eager, compiled, is_one=False)
    assert is_traced()


def test_an_evaluation_is_recorded():
    model = nn.Linear(4, 2).to("xla")
    evaluate = traced(lambda x: model(x).relu())
    x = batches(1)[0]
    for _ in range(3):
        torch.testing.assert_close(evaluate(x.to("xla")).cpu(), model.cpu()(x).relu())
        model.to("xla")
    assert not is_traced()


def test_in_a_job_of_several(monkeypatch):
    """One of the replicas might not be traced, and its programs would be others than theirs."""
    monkeypatch.setattr(replicas, "place", lambda: process_job.ALONE._replace(size=2))
    eager, compiled = both(zero_grad_last)
    run(eager, compiled)
    assert not is_traced()


def test_the_reason_is_logged(monkeypatch):
    def step(trained: Trained, x: torch.Tensor) -> torch.Tensor:
        loss = trained.loss(x)
        print(loss.item())
        loss.backward()
        return loss

    lines: list[tuple[str, str]] = []
    monkeypatch.setattr(output, "log", lambda artifact, line: lines.append((artifact, line)))
    compiled = Trained("xla", step)
    traced(compiled.step, name="mine")(batches(1)[0].to("xla"))
    ((artifact, line),) = lines
    assert artifact == "xla_recompiles"
    assert re.fullmatch(r"mine is recorded at each call: Failed .* `print`.* in step", line)


# ---- what is left behind


def test_the_optimizer_goes_on_elsewhere():
    """Uncompiled, and, from a file, on the CPU."""
    eager, compiled = both(zero_grad_last, functools.partial(torch.optim.AdamW, lr=0.01))
    run(eager, compiled)
    assert is_traced()
    assert [group["capturable"] for group in compiled.optimizer.param_groups] == [False]
    file = io.BytesIO()
    torch.save([compiled.model.state_dict(), compiled.optimizer.state_dict()], file)
    for trained in (eager, compiled):
        zero_grad_last(trained, batches(1)[0].to(trained.device))
    torch.testing.assert_close(compiled.state(), eager.state())
    file.seek(0)
    model, optimizer = torch.load(file, map_location="cpu")
    resumed = Trained("cpu", zero_grad_last, functools.partial(torch.optim.AdamW, lr=0.01))
    resumed.model.load_state_dict(model)
    resumed.optimizer.load_state_dict(optimizer)
    zero_grad_last(resumed, batches(1)[0])
    torch.testing.assert_close(resumed.state(), eager.state())


def test_a_run_resumed_goes_on_bit_for_bit():
    torch.set_default_dtype(torch.float32)
    make = functools.partial(torch.optim.AdamW, lr=0.01)
    _, first = both(zero_grad_last, make)
    xs = [x.to("xla") for x in batches(6)]
    for x in xs[:3]:
        first.step(x)
    file = io.BytesIO()
    torch.save([first.model.state_dict(), first.optimizer.state_dict()], file)
    wanted = [first.step(x).item() for x in xs[3:]]
    file.seek(0)
    model, optimizer = torch.load(file, map_location="cpu")
    _, second = both(zero_grad_last, make)
    second.model.load_state_dict(model)
    second.optimizer.load_state_dict(optimizer)
    assert [second.step(x).item() for x in xs[3:]] == wanted


def test_nothing_is_kept_alive():
    _, compiled = both(zero_grad_last, functools.partial(torch.optim.AdamW, lr=0.01))
    for x in batches():
        compiled.step(x.to("xla"))
    parts = [weakref.ref(each) for each in (compiled.model, compiled.optimizer, compiled.model[0].weight)]
    del compiled
    torch._dynamo.reset()
    gc.collect()
    assert [part() for part in parts] == [None] * 3
