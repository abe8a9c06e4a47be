import pytest

from benchmarks.gpu import facts, smoke


@pytest.mark.parametrize("name", smoke.CHECKS)
def test_the_checks_pass_on_the_cpu(name):
    check, on_xla = smoke.CHECKS[name]
    assert check("xla" if on_xla else "cpu", "CPU")["error"] <= smoke.BOUND


def test_another_platform_is_no_success():
    with pytest.raises(ValueError, match="the xla device is CPU:0, where CUDA was asked for"):
        smoke.operators("xla", "CUDA")


def test_rates_and_sizes():
    found = facts.rates("cpu", size=16, copied_mib=1, rounds=1)
    assert set(found) == {"float32", "tf32", "bfloat16", "copy"}
    assert all(rate > 0 for rate in found.values())
    assert facts.parameter_bytes(["squeezenet1_1"])["squeezenet1_1"] == 4 * 1_235_496
