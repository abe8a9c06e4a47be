import pytest
import torch

from benchmarks import verify
from benchmarks.gpu.precision import AutocastStep, DeviceRequest
from benchmarks.modes import MODES

INPUT = torch.linspace(-1, 1, 8 * 16).reshape(8, 16)


@pytest.mark.parametrize("mode", ["openxla_bfloat16", "openxla_step_bfloat16"])
def test_steps_in_bfloat16_round_as_eagers_do(mode):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 4)).train()
    request = DeviceRequest("vgg16", ["step"], ["eager_bfloat16", mode])
    results = {}
    for name in ("eager", "eager_bfloat16", mode):
        program = request.program("step", name, model, [INPUT])
        assert isinstance(program, AutocastStep) == MODES[name].autocast
        program.run()
        results[name] = program.results()
    assert verify.relative_error(results["eager_bfloat16"], results["eager"]) > 1e-4
    assert verify.check("step", results[mode], verify.Reference(results["eager"]), autocast=True).passed


def test_other_commands_do_not_have_these_modes(forked_process):
    code = "import benchmarks.gpu.session; from benchmarks.modes import MODES; print('cpu_graphs' in MODES)"
    assert forked_process(code).strip() == "False"
