"""A training step in one compiled function is one graph, and means what it means uncompiled."""

from __future__ import annotations

import copy
import functools
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounter

from lazy_runtime.compat.rows import Place
from openxla_backend import backend
from openxla_backend.dynamo import optimizers, step_capture
from tests.openxla_backend.helpers import counting
from tests.openxla_backend.trained import (
    ONE,
    STEPS,
    Trained,
    batches,
    both,
    run,
    step_of,
    zero_grad_first,
    zero_grad_last,
)

# torch's own, while Dynamo traces: it looks at `.grad` of any tensor, and at all there is of a class
pytestmark = [
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"),
    pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated"),
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),
]

dynamo = torch._dynamo.utils.counters


def test_it_is_possible_with_every_torch_that_is_supported():
    assert step_capture._missing() == []


def test_a_warning_says_once_where_it_is_not(monkeypatch):
    monkeypatch.setattr(step_capture, "_EXCHANGED", (Place("torch:Tensor.nothing"),))
    step_capture.warn_if_impossible.cache_clear()
    f = torch.compile(lambda x: x + 1, backend=backend.openxla)
    with pytest.warns(RuntimeWarning, match=r"as one graph with torch .*has no Tensor\.nothing: the step is computed"):
        f(torch.ones(2))
    torch.compile(lambda x: x + 2, backend="openxla")(torch.ones(2))


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    dynamo.clear()
    # a compiled AdamW counts its steps in the default dtype, on any accelerator
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def is_whole() -> bool:
    return not dynamo["graph_break"]


# ---- steps as people write them


def zero_grad_between(trained: Trained, x: torch.Tensor) -> torch.Tensor:
    loss = trained.loss(x)
    trained.optimizer.zero_grad()
    loss.backward()
    trained.optimizer.step()
    return loss


def gradients_set_to_zero(trained: Trained, x: torch.Tensor) -> torch.Tensor:
    trained.optimizer.zero_grad(set_to_none=False)
    loss = trained.loss(x)
    loss.backward()
    trained.optimizer.step()
    return loss


def the_models_zero_grad(trained: Trained, x: torch.Tensor) -> torch.Tensor:
    trained.model.zero_grad()
    loss = trained.loss(x)
    loss.backward()
    trained.optimizer.step()
    return loss


def gradients_never_zeroed(trained: Trained, x: torch.Tensor) -> torch.Tensor:
    loss = trained.loss(x)
    loss.backward()
    trained.optimizer.step()
    return loss


def two_backward_passes(trained: Trained, x: torch.Tensor) -> torch.Tensor:
    trained.optimizer.zero_grad()
    total = torch.zeros((), device=x.device)
    for part in (x[:3], x[2:]):
        loss = trained.loss(part) / 2
        loss.backward()
        total = total + loss.detach()
    trained.optimizer.step()
    return total


def clipping(trained: Trained, x: torch.Tensor) -> torch.Tensor:
    trained.optimizer.zero_grad()
    loss = trained.loss(x)
    loss.backward()
    nn.utils.clip_grad_norm_(trained.model.parameters(), 0.05)
    trained.optimizer.step()
    return loss


def a_second_step_on_the_same_gradients(trained: Trained, x: torch.Tensor) -> torch.Tensor:
    loss = trained.loss(x)
    loss.backward()
    trained.optimizer.step()
    trained.optimizer.step()
    trained.optimizer.zero_grad()
    return loss


def parameters_without_gradients(trained: Trained, x: torch.Tensor) -> torch.Tensor:
    loss = trained.model[:2](x).square().mean()
    loss.backward()
    trained.optimizer.step()
    trained.optimizer.zero_grad()
    return loss


def a_gradient_given(trained: Trained, x: torch.Tensor) -> torch.Tensor:
    loss = trained.model(x).mean(0)
    loss.backward(torch.tensor([1.0, -2.0], device=x.device))
    trained.optimizer.step()
    trained.optimizer.zero_grad()
    return loss


WHOLE = (
    zero_grad_last,
    zero_grad_first,
    zero_grad_between,
    the_models_zero_grad,
    gradients_never_zeroed,
    two_backward_passes,
    clipping,
    a_second_step_on_the_same_gradients,
    parameters_without_gradients,
    a_gradient_given,
)


@pytest.mark.parametrize("step", WHOLE, ids=lambda step: step.__name__)
def test_one_graph(step):
    run(*both(step))
    assert is_whole(), dynamo["graph_break"]


@pytest.mark.parametrize("step", [gradients_set_to_zero], ids=lambda step: step.__name__)
def test_the_same_state(step):
    run(*both(step))


OPTIMIZERS = {
    name: functools.partial(getattr(torch.optim, name), lr=0.01)
    for name in (*(kind.__name__ for kind in optimizers.CAPTURABLE), "Adadelta", "Adafactor", "Adagrad", "SGD")
} | {
    "SGD, plain": functools.partial(torch.optim.SGD, lr=0.1),
    "SGD, nesterov, foreach": functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9, nesterov=True, foreach=True),
    "SGD, fused": functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=0.1, fused=True),
    "AdamW, fused": functools.partial(torch.optim.AdamW, lr=0.01, fused=True),
    "Adam, foreach": functools.partial(torch.optim.Adam, lr=0.01, foreach=True),
    "Adam, amsgrad": functools.partial(torch.optim.Adam, lr=0.01, amsgrad=True, weight_decay=0.1),
    "Adam, learning rate on the device": lambda p: torch.optim.Adam(p, lr=torch.tensor(0.01), capturable=False),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers(name):
    run(*both(zero_grad_last, OPTIMIZERS[name]), is_one=False)
    # where the compiled function has stopped, the optimizer goes on uncompiled
    eager, compiled = both(zero_grad_first, OPTIMIZERS[name])
    run(eager, compiled, is_one=False)
    for trained in (eager, compiled):
        zero_grad_last(trained, batches(1)[0].to(trained.device))
    torch.testing.assert_close(compiled.state(), eager.state())


def test_a_schedule():
    eager, compiled = both(zero_grad_last, functools.partial(torch.optim.AdamW, lr=0.01))
    schedulers = [torch.optim.lr_scheduler.StepLR(t.optimizer, 1, 0.5) for t in (eager, compiled)]
    for number, x in enumerate(batches(6)):
        eager.step(x)
        with counting(*ONE) as counts:
            compiled.step(x.to("xla"))
        assert number < 3 or counts == ONE
        for scheduler in schedulers:
            scheduler.step()
        torch.testing.assert_close(compiled.state(), eager.state())
    assert is_whole(), dynamo["graph_break"]


@pytest.mark.parametrize("step", [zero_grad_last, zero_grad_first], ids=lambda step: step.__name__)
@pytest.mark.parametrize("name", ["weight", "bias"])
def test_parameters_frozen_and_thawed(step, name):
    eager, compiled = both(step)
    for is_trained in (True, False, True):
        for trained in (eager, compiled):
            getattr(trained.model[0], name).requires_grad_(is_trained)
        run(eager, compiled, is_one=False)
    assert is_whole(), dynamo["graph_break"]


@pytest.mark.parametrize("step", [zero_grad_last, zero_grad_first], ids=lambda step: step.__name__)
def test_a_parameter_that_is_exchanged(step):
    eager, compiled = both(step)
    run(eager, compiled)
    for trained in (eager, compiled):
        trained.model[3].weight = nn.Parameter(torch.ones(2, 6, device=trained.device))
        trained.model[0].bias = None
    run(eager, compiled)
    assert is_whole(), dynamo["graph_break"]


@pytest.mark.parametrize("step", [zero_grad_last, zero_grad_first], ids=lambda step: step.__name__)
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_parameter_groups(step, kind):
    """The state of all is made before Dynamo looks at that of any."""

    def optimizer(parameters: Any) -> torch.optim.Optimizer:
        first, second, *rest = parameters
        options = {"momentum": 0.9} if kind is torch.optim.SGD else {}
        return kind([{"params": [first, second]}, {"params": rest, "lr": 0.02}], lr=0.01, **options)

    run(*both(step, optimizer))
    assert is_whole(), dynamo["graph_break"]


@pytest.mark.parametrize("step", [zero_grad_last, zero_grad_first], ids=lambda step: step.__name__)
def test_a_parameter_group_that_is_added(step):
    eager, compiled = both(step)
    for trained in (eager, compiled):
        trained.optimizer = torch.optim.SGD(trained.model[0].parameters(), lr=0.1, momentum=0.9)
    run(eager, compiled)
    for trained in (eager, compiled):
        trained.optimizer.add_param_group({"params": list(trained.model[3].parameters()), "lr": 0.5})
    run(eager, compiled)
    assert is_whole(), dynamo["graph_break"]


def test_the_optimizers_state_loaded():
    eager, compiled = both(zero_grad_last, functools.partial(torch.optim.Adam, lr=0.01))
    run(eager, compiled)
    saved = copy.deepcopy(eager.optimizer.state_dict())
    run(eager, compiled)
    for trained in (eager, compiled):
        trained.optimizer.load_state_dict(copy.deepcopy(saved))
    run(eager, compiled, is_one=False)


def test_gradients_that_are_there_before():
    eager, compiled = both(zero_grad_last)
    for trained in (eager, compiled):
        trained.loss(batches(1)[0].to(trained.device)).backward()
    run(eager, compiled)


# ---- what a step may have in it


def test_hooks_of_what_is_computed():
    def step(trained: Trained, x: torch.Tensor) -> torch.Tensor:
        hidden = trained.model[:2](x)
        hidden.register_hook(lambda gradient: gradient * 3)
        loss = trained.model[2:](hidden).square().mean()
        loss.backward()
        trained.optimizer.step()
        trained.optimizer.zero_grad()
        return loss

    run(*both(step), is_one=False)


def test_retained_gradients():
    def step(trained: Trained, x: torch.Tensor) -> torch.Tensor:
        hidden = trained.model[:2](x)
        hidden.retain_grad()
        loss = trained.model[2:](hidden).square().mean()
        loss.backward()
        trained.optimizer.step()
        trained.optimizer.zero_grad()
        return hidden.grad

    run(*both(step), is_one=False)


@pytest.mark.parametrize("register", ["register_full_backward_hook", "register_full_backward_pre_hook"])
def test_backward_hooks_of_modules(register):
    eager, compiled = both(zero_grad_last)
    for trained in (eager, compiled):
        if register == "register_full_backward_hook":
            trained.model[1].register_full_backward_hook(lambda module, given, got: (given[0] * 2,))
        else:
            trained.model[1].register_full_backward_pre_hook(lambda module, got: (got[0] * 2,))
    run(eager, compiled, is_one=False)


def test_a_parametrized_weight():
    eager, compiled = both(zero_grad_last)
    for trained in (eager, compiled):
        nn.utils.parametrizations.weight_norm(trained.model[0])
        trained.optimizer = torch.optim.SGD(trained.model.parameters(), lr=0.1)
    run(eager, compiled, is_one=False)


def test_a_loss_without_gradients_raises_what_it_raises():
    def step(trained: Trained, x: torch.Tensor) -> None:
        trained.loss(x).detach().backward()

    for trained in both(step):
        with pytest.raises(RuntimeError, match="does not require grad and does not have a grad_fn"):
            trained.step(batches(1)[0].to(trained.device))


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


def test_an_output_that_can_go_backward():
    def step(trained: Trained, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        loss = trained.loss(x)
        loss.backward()
        trained.optimizer.step()
        trained.optimizer.zero_grad()
        return loss, trained.model[:2](x).sum()

    eager, compiled = both(step)
    for x in batches():
        (wanted, theirs), (got, mine) = eager.step(x), compiled.step(x.to("xla"))
        theirs.backward()
        mine.backward()
        torch.testing.assert_close((got.cpu(), mine.cpu()), (wanted, theirs))
        torch.testing.assert_close(compiled.state(), eager.state())


class _Doubled(torch.autograd.Function):
    """A gradient that is none of its forward function's."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return 2 * gradient * x.cos()


def test_a_gradient_of_the_users():
    def step(trained: Trained, x: torch.Tensor) -> torch.Tensor:
        loss = _Doubled.apply(trained.model(x)).square().mean()
        loss.backward()
        trained.optimizer.step()
        trained.optimizer.zero_grad()
        return loss

    run(*both(step))


def test_sparse_gradients_are_refused_as_elsewhere():
    model = nn.Embedding(5, 2, sparse=True).to("xla")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x: torch.Tensor) -> torch.Tensor:
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    with pytest.raises(NotImplementedError, match="stay dense"):
        torch.compile(step, backend="openxla")(torch.tensor([1, 2, 1], device="xla"))


def test_two_models_against_each_other():
    def step(trained: Trained, x: torch.Tensor) -> torch.Tensor:
        judge, made = trained.judge, trained.model(x)
        trained.second.zero_grad()
        judged = judge(made.detach()).square().mean() + (judge(x[:, :2]) - 1).square().mean()
        judged.backward()
        trained.second.step()
        trained.optimizer.zero_grad()
        made_up = (judge(made) - 1).square().mean()
        made_up.backward()
        trained.optimizer.step()
        return judged + made_up

    eager, compiled = both(step)
    for trained in (eager, compiled):
        torch.manual_seed(2)
        trained.judge = nn.Linear(2, 1).to(trained.device)
        trained.second = torch.optim.Adam(trained.judge.parameters(), lr=0.05)
    run(eager, compiled)
    torch.testing.assert_close([p.cpu() for p in compiled.judge.parameters()], [*eager.judge.parameters()])
    assert is_whole(), dynamo["graph_break"]


def test_autocast():
    def step(trained: Trained, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast(x.device.type, dtype=torch.bfloat16):
            loss = trained.loss(x)
        loss.backward()
        trained.optimizer.step()
        trained.optimizer.zero_grad()
        return loss

    eager, compiled = both(step)
    for x in batches():
        torch.testing.assert_close(
            compiled.step(x.to("xla")).detach().cpu(), eager.step(x).detach(), rtol=2e-2, atol=1e-2
        )
    assert is_whole(), dynamo["graph_break"]


# ---- what is not to change


@pytest.mark.parametrize("register", ["register_hook", "register_post_accumulate_grad_hook"])
@pytest.mark.parametrize("is_late", [False, True])
def test_hooks_of_parameters(register, is_late):
    """Autograd runs them; they may come and go."""
    eager, compiled = both(zero_grad_last)
    seen: list[str] = []

    def hook(found: torch.Tensor) -> None:
        seen.append(found.device.type)

    if is_late:
        run(eager, compiled)
        assert is_whole()
    handles = [getattr(trained.model[0].weight, register)(hook) for trained in (eager, compiled)]
    run(eager, compiled, is_one=False)
    assert seen == ["cpu", "xla"] * STEPS
    for handle in handles:
        handle.remove()
    run(eager, compiled, is_one=False)
    assert len(seen) == 2 * STEPS


def test_a_hook_that_changes_the_gradient():
    eager, compiled = both(zero_grad_last)
    for trained in (eager, compiled):
        trained.model[0].weight.register_hook(lambda gradient: 3 * gradient)
    run(eager, compiled, is_one=False)


@pytest.mark.parametrize("step", [zero_grad_last, zero_grad_first], ids=lambda step: step.__name__)
def test_hooks_of_the_optimizer(step):
    eager, compiled = both(step)
    seen: list[str] = []
    for trained in (eager, compiled):
        device = trained.device
        trained.optimizer.register_step_pre_hook(lambda *_, device=device: seen.append(f"before {device}"))
        trained.optimizer.register_step_post_hook(lambda *_, device=device: seen.append(f"after {device}"))
    run(eager, compiled, is_one=False)
    assert seen == ["before cpu", "after cpu", "before xla", "after xla"] * STEPS


def test_going_backward_again_raises():
    _, compiled = both(zero_grad_last)
    for x in batches():
        loss = compiled.step(x.to("xla"))
    assert loss.requires_grad
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        loss.backward()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        (loss * 2).backward()


def test_a_graph_that_is_retained():
    def step(trained: Trained, x: torch.Tensor) -> torch.Tensor:
        trained.optimizer.zero_grad()
        loss = trained.loss(x)
        loss.backward(retain_graph=True)
        (loss * 2).backward()
        trained.optimizer.step()
        return loss.detach()

    run(*both(step), is_one=False)


def test_a_loss_from_outside():
    """Its graph goes on where the compiled function does not look."""

    def step(trained: Trained, hidden: torch.Tensor) -> torch.Tensor:
        loss = trained.model[2:](hidden).square().mean()
        loss.backward()
        trained.optimizer.step()
        trained.optimizer.zero_grad()
        return loss.detach()

    eager, compiled = both(step)
    for x in batches():
        wanted, got = (t.step(t.model[:2](x.to(t.device))) for t in (eager, compiled))
        torch.testing.assert_close(got.cpu(), wanted)
        torch.testing.assert_close(compiled.state(), eager.state())


def test_checkpoints_are_left_to_autograd():
    """XLA would merge what they recompute with the first computation."""

    def step(trained: Trained, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.utils.checkpoint.checkpoint(trained.model[:2], x, use_reentrant=False)
        loss = trained.model[2:](hidden).square().mean()
        loss.backward()
        trained.optimizer.step()
        trained.optimizer.zero_grad()
        return loss

    run(*both(step))
    assert not is_whole()


def test_a_closure():
    def step(trained: Trained, x: torch.Tensor) -> torch.Tensor:
        def closure() -> torch.Tensor:
            trained.optimizer.zero_grad()
            loss = trained.loss(x)
            loss.backward()
            return loss

        return trained.optimizer.step(closure).detach()

    run(*both(step), is_one=False)
    run(*both(step, functools.partial(torch.optim.LBFGS, max_iter=2)), is_one=False)


class Lion(torch.optim.Optimizer):
    """None of torch's, with state of its own."""

    def __init__(self, parameters: Any, lr: float = 0.01):
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["mean"] = torch.zeros_like(p)
                p.add_(state["mean"].lerp(p.grad, 0.1).sign(), alpha=-group["lr"])
                state["mean"].lerp_(p.grad, 0.01)


def test_an_optimizer_of_the_users():
    for step in (zero_grad_last, zero_grad_first):
        run(*both(step, Lion), is_one=False)


def test_a_differentiable_optimizer():
    """Its step is to be differentiated: it is not for steps that update leaves, which raise."""
    eager, compiled = both(zero_grad_last, functools.partial(torch.optim.SGD, lr=0.1, differentiable=True))
    for trained in (eager, compiled):
        with pytest.raises(RuntimeError, match="a leaf Variable that requires grad"):
            trained.step(batches(1)[0].to(trained.device))


def test_two_optimizers():
    def step(trained: Trained, x: torch.Tensor) -> torch.Tensor:
        loss = trained.loss(x)
        loss.backward()
        trained.optimizer.step()
        trained.second.step()
        trained.optimizer.zero_grad()
        trained.second.zero_grad()
        return loss

    eager, compiled = both(step, lambda parameters: torch.optim.SGD(list(parameters)[:2], lr=0.1))
    for trained in (eager, compiled):
        trained.second = torch.optim.Adam(list(trained.model.parameters())[2:], lr=0.01)
    run(eager, compiled)
    assert is_whole(), dynamo["graph_break"]


def test_tied_weights():
    def step(trained: Trained, x: torch.Tensor) -> torch.Tensor:
        weight = trained.model[0].weight
        loss = (torch.tanh(x @ weight.T) @ weight).square().mean()
        loss.backward()
        trained.optimizer.step()
        trained.optimizer.zero_grad()
        return loss

    run(*both(step))


def test_evaluation_sees_the_update():
    eager, compiled = both(zero_grad_last)
    for x in batches():
        eager.step(x)
        compiled.step(x.to("xla"))
        with torch.no_grad():
            torch.testing.assert_close(compiled.loss(x.to("xla")).cpu(), eager.loss(x))


def test_an_update_is_in_place():
    """Whoever shares a parameter's memory sees it."""
    eager, compiled = both(zero_grad_last)
    views = [trained.model[0].weight.detach()[1:] for trained in (eager, compiled)]
    run(eager, compiled)
    torch.testing.assert_close(views[1].cpu(), views[0])


def test_a_failure_leaves_the_parameters():
    """An index out of range: the step raises, and so does what depends on it, but nothing else is lost."""
    model = nn.Embedding(3, 2).to("xla")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    call = torch.compile(step_of(model, optimizer), backend="openxla")
    call(torch.tensor([1], device="xla"))
    with pytest.raises(IndexError, match=r"embedding"):
        call(torch.tensor([5], device="xla")).item()


def test_other_backends_are_left_alone():
    """And so are tensors on the CPU."""
    counter = CompileCounter()
    trained = Trained("cpu", zero_grad_last)
    call = torch.compile(trained.step, backend=counter)
    call(batches(1)[0])
    assert counter.frame_count > 1
    dynamo.clear()
    compiled = Trained("cpu", zero_grad_last)
    torch.compile(compiled.step, backend="openxla")(batches(1)[0])
    assert not is_whole()
