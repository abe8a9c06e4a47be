"""What is written to an argument is seen through it and through whatever shares its memory, and nowhere else."""

from __future__ import annotations

import pytest
import torch

from lazy_runtime.execution.assign import write
from lazy_runtime.tensor.xla_tensor import unwrap


def write_to(*targets: torch.Tensor, value: float = 7.0) -> None:
    """As a compiled graph would, `value` and the numbers after it."""
    sources = [unwrap(torch.full(target.shape, value + number, device="xla")) for number, target in enumerate(targets)]
    write(targets, [source.handle for source in sources], [source.spec for source in sources])


def numbers(*shape: int) -> torch.Tensor:
    return torch.arange(float(torch.Size(shape).numel())).reshape(shape).to("xla")


def test_a_parameter_keeps_its_inner_tensor():
    """The way that costs little."""
    parameter, buffer = torch.nn.Parameter(numbers(2, 3)), numbers(4)
    inner = [id(unwrap(each)) for each in (parameter, buffer)]
    for value in (7.0, 9.0):
        versions = parameter._version, buffer._version
        write_to(parameter, buffer, value=value)
        assert (parameter._version, buffer._version) == (versions[0] + 1, versions[1] + 1)
        assert parameter.tolist() == [[value] * 3] * 2
        assert buffer.tolist() == [value + 1] * 4
    assert [id(unwrap(each)) for each in (parameter, buffer)] == inner
    parameter.data.view(-1)[1] = 1.0  # what is written through views afterwards stands beside it
    assert parameter.tolist() == [[9.0, 1.0, 9.0], [9.0] * 3]


ALIASES = {
    "detach": lambda x: x.detach(),
    "data": lambda x: x.data,
    "view": lambda x: x.view(-1),
    "part": lambda x: x.detach()[1:],
    "parameter": torch.nn.Parameter,
    "storage": lambda x: torch.empty(0, device="xla").set_(x.untyped_storage(), 0, x.shape, x.stride()),
}


@pytest.mark.parametrize("alias", ALIASES.values(), ids=ALIASES.keys())
def test_whatever_shares_the_memory_sees_it(alias):
    x = numbers(3, 2)
    other = alias(x)
    write_to(x)
    assert set(other.detach().flatten().tolist()) == {7.0}
    write_to(other, value=8.0)
    assert set(x[-1].tolist()) == {8.0}


SEPARATE = {
    "clone": torch.clone,
    "copy_": lambda x: torch.empty_like(x).copy_(x),
    "to": lambda x: x.to("xla", copy=True),
    "state": lambda x: torch.nn.Parameter(x.clone()),
    "contiguous": lambda x: x.t().contiguous(),
}


@pytest.mark.parametrize("separate", SEPARATE.values(), ids=SEPARATE.keys())
def test_what_only_had_the_value_does_not(separate):
    x = numbers(2, 2)
    expected = x.flatten().tolist()
    other = separate(x)
    write_to(x)
    assert sorted(other.flatten().tolist()) == expected
    write_to(other, value=3.0)
    assert x.tolist() == [[7.0] * 2] * 2


def test_a_storage_that_python_holds():
    x = torch.nn.Parameter(numbers(3))
    storage = x.untyped_storage()
    write_to(x)
    assert torch.empty(0, device="xla").set_(storage).tolist() == [7.0] * 3


def test_a_conjugate_of_what_is_gone():
    x = torch.complex(numbers(3), numbers(3)).conj()
    source = unwrap(torch.full((3,), 1 + 2j, device="xla"))
    write([x], [source.handle], [source.spec])
    assert x.tolist() == [1 + 2j] * 3


def test_tensors_that_share_an_inner_one():
    inner = unwrap(numbers(3))
    x, y = (torch._to_functional_tensor(inner) for _ in range(2))  # pyright: ignore[reportPrivateImportUsage]
    del inner
    write_to(x)
    assert (x.tolist(), y.tolist()) == ([7.0] * 3, [0.0, 1.0, 2.0])


PARTS = {
    "slice": lambda x: x[1:3],
    "transpose": lambda x: x.t(),
    "column": lambda x: x[:, 1],
    "diagonal": torch.diagonal,
}


@pytest.mark.parametrize("part", PARTS.values(), ids=PARTS.keys())
def test_a_view_of_what_is_gone(part):
    x, expected = part(numbers(4, 3)), part(torch.arange(12.0).reshape(4, 3))
    write_to(x)
    expected.fill_(7.0)
    assert x.tolist() == expected.tolist()
    assert (x.stride(), x.storage_offset()) == (expected.stride(), expected.storage_offset())
    whole = (4, 3), (3, 1), 0
    assert x.as_strided(*whole).tolist() == expected.as_strided(*whole).tolist()


def test_autograd_notices():
    x = torch.nn.Parameter(numbers(3))
    y = (x * x).sum()
    write_to(x)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()


def test_inference_tensors_and_tensors_on_the_cpu():
    with torch.inference_mode():
        x = numbers(3)
        write_to(x)
    y = torch.zeros(3)
    write_to(x, y, value=4.0)
    assert (x.tolist(), y.tolist()) == ([4.0] * 3, [5.0] * 3)


@pytest.mark.parametrize("devices", [("cpu",), ("cpu", "xla"), ("xla", "cpu")])
def test_targets_on_the_cpu(devices):
    targets = [torch.zeros(2).to(device) for device in devices]
    write_to(*targets)
    assert [target.tolist() for target in targets] == [[7.0 + number] * 2 for number in range(len(targets))]
    assert [target.device.type for target in targets] == list(devices)
