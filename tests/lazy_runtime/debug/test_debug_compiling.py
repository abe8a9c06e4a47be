import math

import pytest
import torch

import lazy_runtime
from lazy_runtime import debug
from lazy_runtime.common import metrics
from lazy_runtime.compilation import linearization, lower
from lazy_runtime.debug import recompile_reasons
from lazy_runtime.platform import xla_devices
from lazy_runtime.torch_xla.debug import metrics as met


def here():
    return f"{__file__.rsplit('/', 1)[-1]}:"


def reasons():
    return [found.reason for found in debug.recompiles()]


def test_another_batch_size_is_named_with_its_line_and_advice():
    weight = torch.rand(8, 8).to("xla")
    for size in (64, 64, 37):
        x = torch.rand(size, 8).to("xla")  # the line that the reason names
        (x @ weight).relu()  # nobody keeps it
        y = (x @ weight).relu()
        lazy_runtime.sync()
    (found,) = debug.recompiles()
    assert found.reason == "input 0 was f32[64,8], is f32[37,8]"
    assert (found.cause, found.number, found.backend) == ("input_shape", 2, "lazy")
    assert str(found.line).endswith(f"{here()}{found.line.number}")
    with open(__file__) as file:
        assert "the line that the reason names" in file.read().splitlines()[found.line.number - 1]
    assert "pad it to 64" in found.advice
    assert found.seconds > 0
    assert str(found).startswith(f"compile #2 of {found.region} (")
    assert metrics.value("Recompile::input_shape") == 1
    assert y.shape == (37, 8)


def test_an_operator_that_was_added_or_exchanged_is_named():
    x = torch.rand(8).to("xla")
    for operators in (("cos", "sin"), ("cos", "tan"), ("cos", "tan", "exp")):
        y = x
        for name in operators:
            y = getattr(y, name)()
        lazy_runtime.sync()
        assert y.shape == x.shape
    assert reasons() == ["aten::tan in place of aten::sin", "aten::exp was added"]
    assert {found.cause for found in debug.recompiles()} == {"operators"}


def test_another_dtype_is_named():
    for dtype in (torch.float32, torch.bfloat16):
        x = torch.rand(8).to("xla", dtype)
        y = x.cos()
        lazy_runtime.sync()
        assert y.dtype == dtype
    (found,) = debug.recompiles()
    assert (found.cause, found.reason) == ("input_dtype", "input 0 was f32[8], is bf16[8]")
    assert found.advice == ""


def test_a_number_that_becomes_special_is_named():
    x = torch.rand(8).to("xla")
    for number in (2.5, 3.5, 1.0):  # those that are not special are inputs of the program
        y = x * number
        lazy_runtime.sync()
        assert y.shape == x.shape
    assert reasons() == ["argument other of aten::mul.Tensor was a float that may change, is 1"]


def test_a_buffer_that_is_donated_is_named():
    other = []
    for keep in (True, False):
        x = torch.rand(8).to("xla")
        if keep:
            other.append(x.detach())
        x += 1
        lazy_runtime.sync()
    assert reasons() == ["the buffer of input 0 may be reused now"]


def test_a_constant_argument_is_named_with_both_values():
    x = torch.rand(8, 8).to("xla")
    for dim in (0, 1):
        y = x.softmax(dim)
        lazy_runtime.sync()
    assert y.shape == x.shape
    (found,) = debug.recompiles()
    assert found.cause == "argument"
    assert found.reason == "argument dim of aten::_softmax was 0, is 1"


def test_results_that_are_kept():
    x = torch.rand(8).to("xla")
    for keep in (True, False):
        y = x.cos()
        z = y.sin()
        if not keep:
            del y
        lazy_runtime.sync()
    assert z.shape == x.shape
    assert reasons() == ["the result of aten::cos is kept by no tensor any more"]


def test_each_line_is_a_region():
    x = torch.rand(8).to("xla")
    y = x.cos()
    lazy_runtime.sync()
    z = x.sin()
    lazy_runtime.sync()
    assert debug.recompiles() == []
    assert [found.number for found in debug.compilations()] == [1, 1]
    assert y.shape == z.shape


def test_compiled_functions_are_regions():
    @torch.compile(backend="openxla", dynamic=False)
    def function(x, w):
        y = x @ w
        return torch.relu(y)

    for size in (4, 3):
        function(torch.rand(size, 5), torch.rand(5, 5))
    (found,) = debug.recompiles()
    assert found.backend == "openxla"
    assert found.reason == "input 0 was f32[4,5], is f32[3,5]"
    assert found.region.startswith(f"tests/lazy_runtime/debug/{here()}") or found.region.startswith(here())


def test_the_parameters_of_a_compiled_model_are_a_region_of_their_own():
    model = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.ReLU(), torch.nn.Linear(4, 3)).to("xla")
    compiled = torch.compile(lambda x: model(x) * 2, backend="openxla")
    with torch.no_grad():
        compiled(torch.rand(2, 5).to("xla"))
    once, always = debug.compilations()
    assert once.region == f"the parameters of {always.region}"
    assert here() in always.region
    assert (once.number, always.number) == (1, 1)
    assert debug.recompiles() == []


@pytest.mark.parametrize("backend", ["lazy", "openxla"])
def test_costs_are_xlas(backend):
    a, b = torch.rand(16, 32), torch.rand(32, 8)
    if backend == "lazy":
        a, b = a.to("xla"), b.to("xla")
        product = a @ b
        lazy_runtime.sync()
    else:
        product = torch.compile(torch.matmul, backend="openxla")(a, b)
    (found,) = debug.compilations()
    assert found.backend == backend
    assert found.cost.flops >= 2 * 16 * 32 * 8
    assert found.cost.flops < 2.1 * 16 * 32 * 8
    assert found.cost.bytes_accessed >= 4 * (16 * 32 + 32 * 8 + 16 * 8)
    assert found.cost.arguments == 4 * (16 * 32 + 32 * 8)
    assert found.cost.peak >= found.cost.arguments + product.numel() * 4
    assert "of device memory" in repr(found)
    assert met.metric_data("CompiledFlops")[1] == found.cost.flops
    assert met.metric_data("CompiledPeakMemory")[1] == found.cost.peak


def test_a_cost_outlives_its_program():
    from lazy_runtime.compilation import compiler

    y = torch.rand(4).to("xla").cos()
    lazy_runtime.sync()
    (found,) = debug.compilations()
    cost = found.cost
    compiler.clear()
    assert found.cost is cost
    assert math.isfinite(cost.flops)
    assert y.shape == (4,)


def test_a_step_of_compiled_parts_is_one_region():
    model = torch.nn.Linear(8, 4).to("xla")
    compiled = torch.compile(model, backend="openxla", dynamic=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for size in (6, 6, 4):
        loss = compiled(torch.rand(size, 8).to("xla")).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert math.isfinite(loss.item())
    # addmm and its backward's matrix product and sum, square, mean, SGD's, ...: not the two graphs alone
    assert all(found.operators > 8 for found in debug.compilations() if found.region == debug.recompiles()[0].region)
    shapes = [found for found in debug.recompiles() if found.cause == "input_shape"]
    assert len(shapes) == 1
    assert "was f32[6,8], is f32[4,8]" in shapes[0].reason
    assert shapes[0].line is not None


def test_what_differs_inside_of_a_compiled_part_is_named():
    x = torch.rand(8, 8).to("xla")
    device = xla_devices.get()
    seen = []
    for dim in (0, 1):
        y = x.softmax(dim)
        graph = linearization.linearize(device, device.pending[:], donate=False).graph
        lazy_runtime.sync()
        call = lower.nested_call(graph, {})
        outer = graph._replace(calls=(call,), operands=tuple(-1 - n for n in range(len(call.inputs))), outputs=(0,))
        seen.append(recompile_reasons.Seen(outer, [None], [None]))
        assert y.shape == x.shape
    found = recompile_reasons.explain(*seen)
    assert found.reason == "in the compiled function: argument dim of aten::_softmax was 0, is 1"


def test_operators_added_to_a_long_graph_are_found():
    names = [f"aten::operator{number % 7}" for number in range(3000)]
    longer = [*names[:10], "aten::new", *names[10:2000], "aten::new", "aten::newer", *names[2000:]]
    assert recompile_reasons._edits(names, longer) == ([], [10, 2001, 2002])
    assert recompile_reasons._edits(longer, names) == ([10, 2001, 2002], [])
    assert recompile_reasons._edits(names[:20], [*names[:20], "aten::new"]) == ([], [20])
