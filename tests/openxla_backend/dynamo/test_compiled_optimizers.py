"""Where the state of optimizers in compiled functions lives."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.openxla_backend.helpers import counting

# torch's own, while Dynamo traces: it looks at `.grad` of any tensor, and at all there is of a class
pytestmark = [
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"),
    pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated"),
]

STEPS = 4

graph_breaks = torch._dynamo.utils.counters["graph_break"]


def train(device: str, optimizer: type[torch.optim.Optimizer], compiled: bool, **options):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
    x = torch.randn(5, 4).to(device)
    optimizer = optimizer(model.to(device).parameters(), lr=0.01, **options)

    def step(x: torch.Tensor) -> torch.Tensor:
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    call = torch.compile(step, backend="openxla") if compiled else step
    losses = [call(x) for _ in range(STEPS)]
    with counting("ExecuteComputation") as counts:
        losses.append(call(x))
    losses.append(step(x))  # the optimizer can go on where it is not compiled
    return torch.stack(losses).cpu(), optimizer, counts


@pytest.mark.parametrize("name", ["Adam", "AdamW", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop"])
def test_steps_are_counted_on_the_device(name):
    kind = getattr(torch.optim, name)
    graph_breaks.clear()
    losses, optimizer, counts = train("xla", kind, True)
    assert not [reason for reason in graph_breaks if "lazy_runtime" in reason]
    assert {state["step"].device.type for state in optimizer.state.values()} == {"xla"}
    assert counts["ExecuteComputation"] == 1
    torch.testing.assert_close(losses, train("cpu", kind, False)[0])


@pytest.mark.parametrize(("kind", "options"), [(torch.optim.Adadelta, {}), (torch.optim.Adam, {"foreach": True})])
def test_what_torch_would_refuse_to_go_on_with_is_left_alone(kind, options):
    losses, optimizer, _ = train("xla", kind, True, **options)
    assert not optimizer.param_groups[0]["capturable"]
    torch.testing.assert_close(losses, train("cpu", kind, False)[0])


def test_state_that_is_there_stays_as_it_is():
    _, optimizer, _ = train("xla", torch.optim.AdamW, False)
    assert not optimizer.param_groups[0]["capturable"]
    assert {state["step"].device.type for state in optimizer.state.values()} == {"cpu"}


@pytest.mark.parametrize("device", ["xla", "cpu"])
@pytest.mark.parametrize(
    ("name", "options"),
    [("Adam", {"amsgrad": True}), ("AdamW", {"maximize": True}), ("NAdam", {}), ("Adamax", {}), ("RAdam", {})],
)
def test_a_learning_rate_of_zero_changes_nothing(name, options, device):
    """Not what has had no gradient either, as the rows of an embedding that a batch has not: 0 / 0 in torch's formula
    for counts on the device.
    """

    def train(device: str, compiled: bool) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Embedding(6, 3, dtype=torch.float64), nn.Linear(3, 2, dtype=torch.float64)).to(device)
        optimizer = getattr(torch.optim, name)(model.parameters(), lr=0.0, **options)
        x = torch.tensor([0, 2, 2, 4]).to(device)

        def step(x: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        call = torch.compile(step, backend="openxla") if compiled else step
        for rate in (0.0, 0.0, 0.1):
            optimizer.param_groups[0]["lr"] = rate
            call(x)
        return [p.detach().cpu() for p in model.parameters()]

    for found, expected in zip(train(device, True), train("cpu", False), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_other_backends_have_torchs_formula():
    graphs = []

    def backend(gm: torch.fx.GraphModule, inputs: list[torch.Tensor]):
        graphs.append(str(gm.graph))
        return gm

    for ours in ("openxla", backend):
        parameter = torch.nn.Parameter(torch.ones(3))
        parameter.grad = torch.ones(3)
        optimizer = torch.optim.Adam([parameter], lr=0.1)
        torch.compile(lambda step: step(), backend=ours)(optimizer.step)
    assert graphs
    assert any("addcdiv_" in graph for graph in graphs)


@pytest.mark.parametrize("name", ["Adam", "Adamax", "RMSprop"])
def test_steps_of_each_group_are_counted_where_the_graph_is_broken(name):
    """Dynamo makes the state of one group after the other, and moved the counters of those whose were in the graph."""
    torch.manual_seed(0)
    model = nn.Linear(3, 2).to("xla")
    groups = [{"params": [model.weight]}, {"params": [model.bias], "lr": 0.003}]
    optimizer = getattr(torch.optim, name)(groups, lr=0.01, foreach=True)

    def step(x: torch.Tensor) -> None:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        torch._dynamo.graph_break()
        loss.backward()
        optimizer.step()

    call = torch.compile(step, backend="openxla")
    for _ in range(3):
        call(torch.ones(4, 3, device="xla"))
    assert [float(optimizer.state[p]["step"]) for p in model.parameters()] == [3, 3]
