import pytest
import torch

from benchmarks import verify
from benchmarks.modes import MODES
from benchmarks.training_step import LEARNING_RATE, MOMENTUM, SETTLING, Step
from lazy_runtime.common import metrics

# torch's own, while Dynamo traces: it looks at `.grad` of any tensor, and at all there is of a class
pytestmark = [
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"),
    pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated"),
]

INPUT = torch.linspace(-1, 1, 2 * 3 * 8 * 8).reshape(2, 3, 8, 8)
XLA_MODES = [name for name, mode in MODES.items() if mode.device == "xla"]


def _model():
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(144, 2)
    )


def test_updates_are_those_of_sgd_with_momentum():
    model = _model()
    step = Step(MODES["eager"], model, [INPUT], loop=3)
    step.round()

    velocity = {name: torch.zeros_like(parameter) for name, parameter in model.named_parameters()}
    state = dict(model.named_parameters())
    before = {name: parameter.detach().clone() for name, parameter in state.items()}
    for _ in range(3):
        gradients = torch.autograd.grad(model(INPUT).square().mean(), list(state.values()))
        for (name, parameter), gradient in zip(state.items(), gradients, strict=True):
            velocity[name] = MOMENTUM * velocity[name] + gradient
            with torch.no_grad():
                parameter -= LEARNING_RATE * velocity[name]
    expected = {name: (parameter - before[name]).detach() for name, parameter in state.items()}
    with torch.no_grad():
        for name, parameter in state.items():
            parameter.copy_(before[name])  # the step's own updates are counted from where this model is
    assert verify.relative_error(step.results(), expected) < 1e-4
    assert all(parameter.grad is None for parameter in step.model.parameters())


@pytest.mark.parametrize("mode", ["eager_channels_last", *XLA_MODES])
def test_every_mode_updates_as_eager_does_first_and_again(mode):
    eager = Step(MODES["eager"], _model(), [INPUT])
    eager.run()
    step = Step(MODES[mode], _model(), [INPUT], loop=2)
    step.run()
    assert verify.relative_error(step.results(), eager.results()) < 1e-4
    for _ in range(2):
        step.round()
    assert verify.relative_error(step.results(), eager.results()) > 1e-1
    step.first_step_again()
    assert verify.relative_error(step.results(), eager.results()) < 1e-4


@pytest.mark.parametrize("mode", XLA_MODES)
def test_a_settled_loop_executes_one_program_per_step_and_compiles_nothing(mode):
    step = Step(MODES[mode], _model(), [INPUT], loop=4)
    for _ in range(1 + SETTLING):
        step.run()
    before = metrics.value("ExecuteComputation"), metrics.value("UncachedCompile")
    host_times = step.round()
    assert metrics.value("ExecuteComputation") - before[0] == 4
    assert metrics.value("UncachedCompile") == before[1]
    assert len(host_times) == 4


def test_the_model_is_left_as_it_is():
    model = _model()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    step = Step(MODES["eager"], model, [INPUT])
    step.run()
    step.first_step_again()
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
