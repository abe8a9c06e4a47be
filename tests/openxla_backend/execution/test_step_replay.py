"""A step that repeats itself is executed without being recorded, and what happens to its tensors meanwhile is seen."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import lazy_runtime
from lazy_runtime.common import config
from lazy_runtime.ir import lifetimes
from lazy_runtime.recording import dispatch
from lazy_runtime.tensor.xla_tensor import unwrap
from tests.openxla_backend.helpers import counting
from tests.openxla_backend.trained import ONE, Trained, batches, both, run, step_of, zero_grad_last

pytestmark = [
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"),
]

#: Steps until all is as it will be: the first makes the optimizer's state.
SETTLING = 3


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The calls of whole graphs that were recorded."""
    calls: list[Any] = []
    record = dispatch.record_graph

    def counted(call: Any, *args: Any) -> Any:
        calls.append(call)
        return record(call, *args)

    monkeypatch.setattr(dispatch, "record_graph", counted)
    return calls


def settled(step: Callable[..., Any] = zero_grad_last, **options: Any) -> tuple[Trained, Trained]:
    """A training on the CPU and on xla, some steps on."""
    eager, compiled = both(step, **options)
    run(eager, compiled, count=SETTLING)
    return eager, compiled


OPTIMIZERS = {
    "sgd": None,
    "adamw": functools.partial(torch.optim.AdamW, lr=0.01),
    # a tensor on the CPU, which comes with each call
    "adamw, learning rate in a tensor": functools.partial(torch.optim.AdamW, lr=torch.tensor(0.01)),
}
FORMS = {
    "compiled": functools.partial(torch.compile, backend="openxla"),
    "region": functools.partial(lazy_runtime.compile, trace_after=0),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_it_is_not_recorded(form, optimizer, recorded):
    eager, compiled = settled(optimizer=OPTIMIZERS[optimizer], compile=FORMS[form])
    assert recorded
    recorded.clear()
    run(eager, compiled)
    assert not recorded


def test_dropout_draws_what_it_would(recorded):
    """The same numbers as where each step is recorded."""

    def losses(is_recorded: bool) -> list[float]:
        torch._dynamo.reset()
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 64), nn.Dropout(0.5), nn.Linear(64, 1)).to("xla")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        call = torch.compile(step_of(model, optimizer), backend="openxla")
        found = []
        for x in batches(6):
            held = model[0].weight.detach() if is_recorded else None
            found.append(call(x.to("xla")).item())
            del held
        return found

    wanted = losses(True)
    assert len(recorded) == 6
    assert losses(False) == wanted
    assert len(recorded) < 12


def written_through_data(trained: Trained) -> None:
    trained.model[0].weight.data.mul_(0.5)


def written_in_place(trained: Trained) -> None:
    with torch.no_grad():
        trained.model[3].bias.add_(1.0)


def pending(trained: Trained) -> None:
    """Nothing has been executed yet."""
    trained.model[2].running_mean.copy_(trained.model[2].running_var * 0.1)


def loaded(trained: Trained) -> None:
    state = {name: value.clone() * 0.9 for name, value in trained.model.state_dict().items()}
    trained.model.load_state_dict(state)


def data_exchanged(trained: Trained) -> None:
    trained.model[0].weight.data = torch.ones(6, 4, device=trained.device)


def momentum_cleared(trained: Trained) -> None:
    for state in trained.optimizer.state.values():
        state["momentum_buffer"].zero_()


def learning_rate(trained: Trained) -> None:
    trained.optimizer.param_groups[0]["lr"] = 0.01


def frozen(trained: Trained) -> None:
    trained.model[0].weight.requires_grad_(False)


CHANGES = [
    written_through_data,
    written_in_place,
    pending,
    loaded,
    data_exchanged,
    momentum_cleared,
    learning_rate,
    frozen,
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_change_between_steps_is_seen(change):
    eager, compiled = settled()
    for trained in (eager, compiled):
        change(trained)
    run(eager, compiled, is_one=False)


VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "detach": torch.Tensor.detach,
    "data": lambda x: x.data,
    "part": lambda x: x.detach()[1:],
    "transposed": lambda x: x.detach().t(),
}


@pytest.mark.parametrize("view", VIEWS)
def test_what_shares_the_memory_is_updated(view):
    eager, compiled = settled()
    views = [VIEWS[view](trained.model[0].weight) for trained in (eager, compiled)]
    run(eager, compiled)
    torch.testing.assert_close(views[1].cpu(), views[0])


def test_what_was_copied_stays():
    _, compiled = settled()
    before = compiled.model[0].weight.detach().clone()
    lazy = compiled.model[3].weight * 1.0
    wanted = [each.detach().cpu().clone() for each in (before, lazy)]
    for x in batches():
        compiled.step(x.to("xla"))
    assert torch.equal(before.cpu(), wanted[0])
    assert torch.equal(lazy.detach().cpu(), wanted[1])


def test_what_is_pending_joins_the_step(recorded):
    eager, compiled = settled()
    for x in batches():
        wanted = eager.step(x * 2 + 1)
        recorded.clear()
        with counting(*ONE) as counts:
            found = compiled.step(x.to("xla") * 2 + 1)
        assert recorded
        assert counts["ExecuteComputation"] == 1
        torch.testing.assert_close(found.detach().cpu(), wanted.detach())
        torch.testing.assert_close(compiled.state(), eager.state())


def test_a_buffer_that_others_see_is_not_given_away():
    """DLPack's consumers look at the buffer itself."""
    eager, compiled = settled()
    seen = torch.from_dlpack(unwrap(compiled.model[0].weight).handle.value.array)
    unwrap(compiled.model[0].weight).handle.value.pinned = True
    before = seen.clone()
    run(eager, compiled, is_one=False, count=1)
    assert torch.equal(seen, before)


def test_without_donation(monkeypatch, recorded):
    monkeypatch.setattr(config, "donation", lambda: False)
    eager, compiled = settled()
    recorded.clear()
    old = unwrap(compiled.model[0].weight).handle.value.array
    run(eager, compiled)
    assert not recorded
    assert not old.is_deleted()


def test_eager_mode(recorded):
    eager, compiled = settled()
    lazy_runtime.experimental.eager_mode(True)
    try:
        run(eager, compiled, is_one=False)
    finally:
        lazy_runtime.experimental.eager_mode(False)
    run(eager, compiled)


def test_an_evaluation_knows_the_new_parameters():
    """What was computed from parameters once is kept for as long as they are what they were."""
    eager, compiled = settled()
    evaluate = torch.compile(compiled.model, backend="openxla")
    for x in batches():
        eager.step(x)
        compiled.step(x.to("xla"))
        eager.model.eval(), compiled.model.eval()
        with torch.no_grad():
            torch.testing.assert_close(evaluate(x.to("xla")).cpu(), eager.model(x))
        eager.model.train(), compiled.model.train()


def test_a_region_counts_its_graphs(recorded):
    trained = Trained("xla", zero_grad_last)
    call = lazy_runtime.compile(trained.step, max_different_graphs=2, trace_after=0)
    for x in batches(SETTLING + 2):
        call(x.to("xla"))
    assert recorded


def test_a_region_is_one_program(recorded):
    """A compiled step within a region that goes on after it."""
    eager, compiled = settled()
    step = compiled.step

    @lazy_runtime.compile
    def with_more(x: torch.Tensor) -> torch.Tensor:
        print(end="")  # Dynamo does not take it
        return step(x) * 2

    for x in batches():
        wanted = eager.step(x)
        with counting("ExecuteComputation") as counts:
            found = with_more(x.to("xla"))
        assert counts == {"ExecuteComputation": 1}
        torch.testing.assert_close(found.detach().cpu(), wanted.detach() * 2)


def embedding_step() -> tuple[nn.Embedding, Callable[[torch.Tensor], torch.Tensor]]:
    torch.manual_seed(0)
    model = nn.Embedding(3, 2).to("xla")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    call = torch.compile(step_of(model, optimizer), backend="openxla")
    for _ in range(SETTLING):
        call(torch.tensor([1], device="xla"))
    return model, call


def test_a_failure_names_the_line(recorded):
    model, call = embedding_step()
    recorded.clear()
    before = model.weight.detach().cpu()
    with pytest.raises(IndexError, match=r"(?s)embedding.*trained\.py.*in step"):
        call(torch.tensor([5], device="xla")).item()
    assert not recorded
    call(torch.tensor([1], device="xla"))
    assert model.weight[0].tolist() == before[0].tolist()


def test_an_execution_that_fails_loses_what_it_took(monkeypatch):
    """The buffers that were donated to it are gone, and who reads them is told."""
    import jax

    from lazy_runtime.compilation import compiler

    model, call = embedding_step()

    def fail(self: Any, leaves: Any, *args: Any) -> Any:
        for leaf in leaves:
            leaf.delete()
        raise jax.errors.JaxRuntimeError("INTERNAL: the device is gone")

    with monkeypatch.context() as patched:
        patched.setattr(compiler.Executable, "__call__", fail)
        with pytest.raises(jax.errors.JaxRuntimeError, match="the device is gone"):
            call(torch.tensor([1], device="xla"))
    with pytest.raises(RuntimeError, match="the program that was to compute it failed"):
        model.weight.cpu()


def test_handles_are_counted():
    _, compiled = settled()
    for x in batches(2):
        compiled.step(x.to("xla"))
    before = lifetimes.alive()
    for x in batches(5):
        compiled.step(x.to("xla"))
    assert lifetimes.alive() == before


def test_writes_are_counted():
    _, compiled = settled()
    weight = compiled.model[0].weight
    saved = weight * torch.ones(6, 4, device="xla", requires_grad=True)
    version = weight._version
    compiled.step(batches(1)[0].to("xla"))
    assert weight._version > version
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        saved.sum().backward()


def test_threads_train_models_of_their_own():
    pairs = [settled() for _ in range(2)]
    failures: list[BaseException] = []

    def train(compiled: Trained, given: list[torch.Tensor]) -> None:
        try:
            for x in given:
                compiled.step(x)
        except BaseException as error:
            failures.append(error)

    given = batches(20)
    threads = [threading.Thread(target=train, args=(compiled, [x.to("xla") for x in given])) for _, compiled in pairs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    for eager, compiled in pairs:
        for x in given:
            eager.step(x)
        torch.testing.assert_close(compiled.state(), eager.state())
