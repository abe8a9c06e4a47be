"""What a program is found by: the same in every process, and another one for whatever changes code."""

from __future__ import annotations

import ast
import os

import jax
import pytest
import torch
from torch.nn.functional import gelu

from lazy_runtime.cache import disk_key
from lazy_runtime.ops import registry
from lazy_runtime.recording import dispatch
from tests.lazy_runtime.graphs import buffers, number

aten = torch.ops.aten

IN_A_PROCESS = """
    import torch
    from lazy_runtime.compilation import compiler
    from lazy_runtime.platform import xla_devices
    from lazy_runtime.cache import disk_key
    seen = []
    def executable(graph, keep_layout=frozenset(), *rest, **named):
        seen.append(disk_key.program(graph, keep_layout))
        return found(graph, keep_layout)
    found, compiler.executable = compiler.executable, executable
    image = torch.ones(1, 2, 4, 4, device="xla", dtype=torch.bfloat16)
    torch.nn.Conv2d(2, 3, 3, device="xla", dtype=torch.bfloat16)(image).cpu()
    torch.dropout(image, 0.25, True)[..., 1:3].sum((0, 2), keepdim=True).cpu()
    torch.compile(lambda x: x @ x.mT * 3.5 + float("inf"), backend="openxla")(torch.eye(3))
    print(seen)
"""


@pytest.fixture
def x():
    return buffers(torch.ones(2, 3))[0]


def program(function, *tensors, keep_layout=None, donate=False):
    numbered, _kept = number(function, *tensors, donate=donate)
    return disk_key.program(numbered.graph, keep_layout)


def test_every_process_finds_the_same(fresh_process):
    runs = {fresh_process(IN_A_PROCESS, PYTHONHASHSEED=seed) for seed in ("1", "2")}
    (seen,) = runs
    assert len(set(ast.literal_eval(seen))) == 3


def test_programs_differ_in_what_the_lowering_reads(x):
    (ints,) = buffers(torch.ones(2, 3, dtype=torch.int32))
    (long,) = buffers(torch.ones(2, 4))
    functions = [
        (lambda x: x + 1, x),
        (lambda x: x + 1.0, x),
        (lambda x: x + True, x),
        (lambda x: x + 1, long),
        (lambda x: x + 1, ints),
        (lambda x: x + 0.0, x),
        (lambda x: x + -0.0, x),
        (lambda x: x - 1, x),
        (lambda x: x + 1 + 1, x),
        (lambda x: x.sum(0), x),
        (lambda x: x.sum(1), x),
        (lambda x: x.sum((0, 1)), x),
        (lambda x: x.sum(0, dtype=torch.float64), x),
        (gelu, x),
        (lambda x: gelu(x, approximate="tanh"), x),
    ]
    found = [program(function, tensor) for function, tensor in functions]
    assert len(set(found)) == len(functions)
    assert found[0] == program(lambda x: x + 1, buffers(torch.zeros(2, 3))[0])


def test_operands_and_results_count(x):
    (y,) = buffers(torch.ones(2, 3))
    programs = [
        program(lambda x, y: x - y, x, y),
        program(lambda x, y: x - x, x, y),
        program(lambda x, y: y.neg() - x, x, y),
        program(lambda x, y: (lambda z: (z, x - z))(y.neg()), x, y),
        program(lambda x, y: (lambda z: x - z)(y.neg()), x, y),
    ]
    assert len(set(programs)) == len(programs)


def test_layouts_donation_options_and_precision_count(x):
    numbered, _kept = number(lambda x: aten.mm(x, x.mT), x)
    graph = numbered.graph
    found = [
        disk_key.program(graph, None),
        disk_key.program(graph, frozenset()),
        disk_key.program(graph, frozenset({0})),
        disk_key.program(graph._replace(donated=(0,)), None),
        disk_key.program(graph._replace(channels_last=(0,)), None),
        disk_key.program(graph._replace(options=(("xla_cpu_enable_fast_math", True),)), None),
    ]
    torch.set_float32_matmul_precision("high")
    try:
        found.append(program(lambda x: aten.mm(x, x.mT), x))
    finally:
        torch.set_float32_matmul_precision("highest")
    assert len(set(found)) == len(found)
    assert program(lambda x: aten.mm(x, x.mT), x) == found[0]


def test_operators_of_one_name_differ(x):
    """`data_dependent.program` makes operators of ours that go by the name of aten's."""
    first, second = (registry.Operator("aten::neg", aten.neg.default, registry.table[target].lowering)
                     for target in (aten.neg.default, aten.exp.default))  # fmt: skip
    assert program(lambda x: dispatch.record(first, (x,), {}), x) != program(
        lambda x: dispatch.record(second, (x,), {}), x
    )


def test_lowerings_from_elsewhere_have_no_key(x):
    operator = registry.Operator("aten::neg", aten.neg.default, lambda call, args, kwargs: -args[0])
    with pytest.raises(disk_key.UncacheableError, match=f"the lowering of aten::neg is defined in {__name__}"):
        program(lambda x: dispatch.record(operator, (x,), {}), x)


def test_arguments_of_unknown_types_have_no_key(x):
    numbered, _kept = number(lambda x: x.neg(), x)
    (call,) = numbered.graph.calls
    operator, arguments = call.meaning
    try:
        call.meaning, call.digest = (operator, (*arguments, object())), None
        with pytest.raises(disk_key.UncacheableError, match=r"an argument of type builtins\.object"):
            disk_key.program(numbered.graph, None)
    finally:
        call.meaning = operator, arguments


def test_the_environment_counts(x, monkeypatch):
    device = x.spec.device

    def surroundings(**options):
        return disk_key.surroundings(device, options)

    before = surroundings()
    assert before == surroundings()
    assert disk_key.difference(before, surroundings(a=1)) == 'options of XLA was {"a": 1}, is {}'
    with jax.numpy_dtype_promotion("strict"):
        assert disk_key.difference(surroundings(), before) == "flags of jax differs"
    torch.set_default_dtype(torch.float64)
    try:
        assert disk_key.difference(surroundings(), before) == "default dtype was torch.float32, is torch.float64"
    finally:
        torch.set_default_dtype(torch.float32)
    assert before == surroundings()


def test_flags_and_variables_of_a_process_count(fresh_process):
    code = """
        import torch
        from lazy_runtime.cache import disk_key
        from lazy_runtime.platform import xla_devices
        found = disk_key.surroundings(xla_devices.get(), {})
        del found["lazy_runtime"]  # a checkout may be edited while it is tested
        print(found)
    """
    plain = ast.literal_eval(fresh_process(code, XLA_METRICS_FILE=os.devnull, JAX_LOGGING_LEVEL="ERROR"))
    assert ast.literal_eval(fresh_process(code)) == plain
    flags = {
        "XLA_FLAGS": "--xla_cpu_enable_fast_math=true",
        "JAX_DEFAULT_MATMUL_PRECISION": "bfloat16",
        "XLA_USE_32BIT_LONG": "1",
        "CPU_NUM_DEVICES": "2",
    }
    other = ast.literal_eval(fresh_process(code, **flags))
    differing = {name for name in plain if plain[name] != other[name]}
    assert differing == {"XLA_FLAGS", "flags of XLA", "flags of jax", "variables", "device"}


def test_what_chooses_kernels_is_part_of_the_key(fresh_process, monkeypatch):
    """Kernels that need AVX-512 are left out under ATEN_CPU_CAPABILITY=default: its programs are other ones."""
    code = """
        import torch
        from lazy_runtime.cache import disk_key
        from lazy_runtime.platform import xla_devices
        print(torch.backends.cpu.get_cpu_capability(), disk_key.surroundings(xla_devices.get("xla:0"), {})["kernels"])
    """
    name, key = fresh_process(code, ATEN_CPU_CAPABILITY="default").split(maxsplit=1)
    assert key.startswith(f"{name} ")
    for variable in ("MKL_NUM_THREADS", "ONEDNN_MAX_CPU_ISA"):
        monkeypatch.delenv(variable, raising=False)
    plain = disk_key._choice_of_kernels()
    assert plain.startswith(torch.backends.cpu.get_cpu_capability())
    monkeypatch.setenv("MKL_NUM_THREADS", "1")
    assert disk_key._choice_of_kernels() == plain
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    assert disk_key._choice_of_kernels() != plain
