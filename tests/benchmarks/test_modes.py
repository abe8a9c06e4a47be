import pytest
import torch

from benchmarks import verify
from benchmarks.modes import MODES, Program


def _model():
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(144, 2)
    )


INPUT = torch.linspace(-1, 1, 2 * 3 * 8 * 8).reshape(2, 3, 8, 8)


@pytest.mark.parametrize("mode", ["eager_channels_last", "lazy", "openxla"])
@pytest.mark.parametrize("training", [False, True])
def test_every_mode_gives_eagers_results_again_and_again(mode, training):
    model = _model().train(training)
    results = {}
    for name in ("eager", mode):
        program = Program(MODES[name], model, [INPUT])
        for call in range(2):
            program.clear()
            program.run()
            results[name, call] = program.results()
    for call in range(2):
        assert results[mode, call].keys() == results["eager", 0].keys()
        assert verify.relative_error(results[mode, call], results["eager", 0]) < 1e-5


def test_the_model_is_left_as_it_is():
    model = _model().train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    Program(MODES["eager"], model, [INPUT]).run()
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_clear_forgets_gradients():
    program = Program(MODES["eager"], _model().train(), [INPUT])
    program.run()
    assert program.results()
    program.clear()
    assert not program.results()


def test_a_mode_of_whole_steps_runs_nothing_else():
    with pytest.raises(ValueError, match="this mode compiles the function of a whole step"):
        Program(MODES["openxla_step"], _model(), [INPUT])


def test_channels_last_is_that():
    program = Program(MODES["eager_channels_last"], _model(), [INPUT])
    assert program.inputs[0].is_contiguous(memory_format=torch.channels_last)
    assert program.model[0].weight.is_contiguous(memory_format=torch.channels_last)


def test_freezing_is_asked_for_while_the_model_is_traced(monkeypatch):
    from torch._inductor import config

    seen = []

    def compile_function(function, **options):
        assert options == {"backend": "inductor", "mode": "max-autotune-no-cudagraphs"}

        def call(*inputs):
            seen.append(config.freezing)
            return function(*inputs)

        return call

    monkeypatch.setattr(torch, "compile", compile_function)
    program = Program(MODES["inductor_freezing"], _model().eval(), [INPUT])
    for _ in range(3):
        program.run()
    assert seen == [True, False, False]
    assert set(program.results()) == {"output 0"}


@pytest.mark.parametrize("mode", ["eager_bfloat16", "openxla_bfloat16"])
def test_autocast_computes_in_bfloat16(mode):
    model = _model().eval()
    program, eager = Program(MODES[mode], model, [INPUT]), Program(MODES["eager"], model, [INPUT])
    for each in (program, eager):
        each.run()
    assert program.results()["output 0"].dtype is torch.bfloat16
    check = verify.check("inference", program.results(), verify.Reference(eager.results()), autocast=True)
    assert check.what == "bfloat16 outputs"
    assert 1e-4 < check.error < check.bound
