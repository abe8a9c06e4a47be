from pathlib import Path

from benchmarks.gpu import settings
from benchmarks.gpu.precision import DRY_MODES, GPU_MODES, ROLES, roles
from benchmarks.models import COMPARED
from benchmarks.modes import MODES


def test_important_models_come_first_in_every_pass():
    requests = settings.on_gpu(9.0, Path()).requests()
    assert len(requests) == len(COMPARED) * len(settings.PASSES)
    first = requests[: len(settings.FIRST) * len(settings.PASSES)]
    assert [each.title for each in first[:6]] == [
        *(f"{model} inference tf32" for model in settings.FIRST),
        "resnet18 step tf32",
    ]
    assert {each.model for each in first} == set(settings.FIRST)


def test_each_role_has_a_mode_and_one_that_stands_for_it():
    for modes in (GPU_MODES, DRY_MODES):
        for precision, of in modes.items():
            assert tuple(of) == ROLES
            assert all(MODES[mode].autocast == (precision == "bfloat16") for mode in of.values())
    assert all(MODES[mode].device != "cuda" for of in DRY_MODES.values() for mode in of.values())
    assert "openxla_step" not in roles("tf32", "inference")
    assert roles("tf32", "step", ["eager", "openxla_step"], dry=True) == {
        "eager": "eager",
        "openxla_step": "openxla_step",
    }


def test_requests_of_a_gpu_use_tf32_where_it_is_asked_for():
    usual = settings.on_gpu(9.0, Path())
    assert usual.request("vgg16", "step", "tf32").tf32
    assert not usual.request("vgg16", "step", "bfloat16").tf32
    assert usual.request("vgg16", "step", "bfloat16").modes_of("step")[-1] == "openxla_step_bfloat16"
    assert usual.request("vgg16", "step", "bfloat16").peer("openxla_bfloat16") == "cuda_bfloat16"
    dry = settings.dry(3.0, Path()).request("vgg16", "step", "bfloat16")
    assert dry.peer("openxla_bfloat16") == "eager_bfloat16"
    assert dry.precision == "bfloat16"
