"""Bad input gets torch's message, or one that says what to do, at the line that caused it."""

from __future__ import annotations

import pytest
import torch

import lazy_runtime

SHAPES = {
    "add": lambda d: torch.ones(2, 3, device=d) + torch.ones(4, device=d),
    "mm": lambda d: torch.ones(2, 3, device=d) @ torch.ones(2, 3, device=d),
    "linear": lambda d: torch.nn.Linear(3, 2).to(d)(torch.ones(1, 4, device=d)),
    "view": lambda d: torch.ones(3, device=d).view(2, 2),
    "cat": lambda d: torch.cat([torch.ones(2, 3, device=d), torch.ones(2, 4, device=d)], 0),
    "dim": lambda d: torch.ones(3, device=d).sum(dim=4),
    "select": lambda d: torch.ones(3, device=d)[5],
    "conv": lambda d: torch.nn.functional.conv2d(torch.ones(1, 2, 4, 4, device=d), torch.ones(1, 3, 2, 2, device=d)),
    "expand": lambda d: torch.ones(3, device=d).expand(4),
    "dtype": lambda d: torch.ones(3, device=d).to(torch.int64) @ torch.ones(3, device=d),
}


@pytest.mark.parametrize("name", SHAPES)
def test_shapes_that_do_not_fit_raise_torchs_message(name):
    with pytest.raises((RuntimeError, IndexError)) as torchs:
        SHAPES[name]("cpu")
    with pytest.raises(type(torchs.value)) as ours:
        SHAPES[name]("xla")
    assert str(ours.value) == str(torchs.value)


@pytest.mark.parametrize(
    "mix",
    [
        lambda cpu, xla: cpu + xla,
        lambda cpu, xla: xla * cpu,
        lambda cpu, xla: xla @ cpu,
        lambda cpu, xla: torch.cat([xla, cpu]),
        lambda cpu, xla: torch.where(xla > 0, xla, cpu),
        lambda cpu, xla: torch.nn.functional.linear(xla, cpu),
        lambda cpu, xla: torch._foreach_add([xla], [cpu]),
    ],
)
def test_mixing_cpu_and_xla(mix):
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device, but found at least two"):
        mix(torch.ones(2, 2), torch.ones(2, 2, device="xla"))


def test_numbers_on_the_cpu_may_be_mixed_in():
    x = torch.ones(2, device="xla") * torch.tensor(3.0)
    assert x.tolist() == [3, 3]


@pytest.mark.parametrize(
    "use", [lambda: torch.ones(2, device="xla:9"), lambda: torch.ones(2).to("xla:9"), lambda: lazy_runtime.device(9)]
)
def test_a_device_that_is_not_there(use):
    with pytest.raises(RuntimeError, match=r"xla:9 does not exist: this process has \d+ xla device"):
        use()


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
def test_a_dtype_that_xla_lacks():
    for make in (
        lambda: torch.ones(3, dtype=torch.complex32).to("xla"),
        lambda: torch.empty(3, dtype=torch.complex32, device="xla"),
        lambda: torch.ones(3, device="xla").to(torch.complex32),
    ):
        with pytest.raises(TypeError, match="complex32 has no counterpart in XLA: convert the tensor to one of bool"):
            make()
    x = torch.ones(3, device="xla")
    assert (x + 1).tolist() == [2, 2, 2]  # nothing bad is left pending


@pytest.mark.filterwarnings("ignore:Sparse (CSR tensor support|invariant checks)")
@pytest.mark.parametrize(
    "make",
    [lambda: torch.eye(3).to_sparse_csr().to("xla"), lambda: torch.eye(3, device="xla").to_sparse_csr()],
)
def test_sparse_tensors_of_other_layouts_than_coo(make):
    with pytest.raises(NotImplementedError, match=r"xla tensors are dense.*x.to_dense\(\)"):
        make()
