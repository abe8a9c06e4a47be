"""What a package says of its program: what the executable reads and gives, and what a call makes of that.

The operators themselves are gone, they are machine code now: a restored graph has calls with names and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import torch

from lazy_runtime.ir.graph import Call, Graph
from lazy_runtime.ir.spec import TensorSpec
from lazy_runtime.lowering import checks
from lazy_runtime.platform.xla_devices import Device
from lazy_runtime.tensor.xla_tensor import XLATensor

from ..graph.fx import Program
from ..graph.outputs import Argument, ArgumentItself, Constant, Output, OwnTensor, PythonValue, Result, Source, View
from ..graph.partial_writes import PartialWrite

Described = dict[str, Any]

#: Two numbers that no message has by itself: where one stands, the other would.
_PROBES = 914_700_271, 638_201_513


def describe(program: Program, physical: Sequence[bool], checked: Sequence[checks.Check]) -> Described:
    """A traced and compiled program as JSON.

    Args:
        physical: for each result, whether it is channels last.
        checked: what it checks.

    Raises:
        NotImplementedError: it does something after the run that is not written down here.
    """
    if program.exchanges:
        raise NotImplementedError("the call makes an argument an alias of something else (`x.data = y`)")
    graph = program.graph
    memories: dict[Any, int] = {}
    return {
        "calls": [call.name for call in graph.calls],
        "fallible": [number for number, call in enumerate(graph.calls) if call.fallible],
        "leaves": [_spec(spec) for spec in graph.leaves],
        "results": [_spec(spec) for spec in graph.output_specs()],
        "channels_last": list(graph.channels_last),
        "physical": list(physical),
        "outputs": [_output(output, memories) for output in program.outputs],
        "mutations": [[number, _output(output, memories)] for number, output in program.mutations],
        "parts": [
            [write.number, write.dim, *(_source(source) for source in write.read)] for write in program.partial_writes
        ],
        "seeds": program.seeds,
        "lines": {str(number): line for number, line in program.known_lines().items()},
        "checks": [_check(check) for check in checked],
    }


def restore(
    described: Described, device: Device, leaves: Sequence[int | XLATensor]
) -> tuple[Program, frozenset[int], tuple[checks.Check, ...]]:
    """The program, the numbers of its results that are channels last, and what it checks.

    Args:
        device: where it runs.
        leaves: see `Program`.
    """

    def refuse(*_: Any) -> NoReturn:
        raise NotImplementedError("a packaged program is called by itself: it cannot be a part of another one")

    specs = [_restored_spec(device, spec) for spec in described["results"]]
    fallible = set(described["fallible"])
    calls = [
        Call(name, device, refuse, (), (), fallible=number in fallible)
        for number, name in enumerate(described["calls"])
    ]
    # all results stand at one call, which is as well any; that draws the seeds too
    calls.append(Call("lazy_runtime::packaged", device, refuse, (), tuple(specs), ints=described["seeds"]))
    graph = Graph(
        device,
        tuple(calls),
        (),
        tuple(range(len(specs))),
        tuple(_restored_spec(device, spec) for spec in described["leaves"]),
        (),
        tuple(described["channels_last"]),
    )
    program = Program(
        graph,
        tuple(leaves),
        tuple(_restored_output(output, device) for output in described["outputs"]),
        tuple((number, _restored_tensor(output, device)) for number, output in described["mutations"]),
        described["seeds"],
        {int(number): line for number, line in described["lines"].items()},
        tuple("" for _ in calls),
        (),
        tuple(PartialWrite(number, dim, *map(_restored_source, read)) for number, dim, *read in described["parts"]),
    )
    physical = frozenset(number for number, is_last in enumerate(described["physical"]) if is_last)
    return program, physical, tuple(_restored_check(check) for check in described["checks"])


def _spec(spec: TensorSpec) -> Described:
    return {
        "dtype": str(spec.dtype).removeprefix("torch."),
        "shape": list(spec.shape),
        "stride": list(spec.stride),
        "offset": spec.offset,
    }


def _restored_spec(device: Device, spec: Described) -> TensorSpec:
    return TensorSpec.of(
        device, getattr(torch, spec["dtype"]), tuple(spec["shape"]), tuple(spec["stride"]), spec["offset"]
    )


def _source(source: Source) -> list[Any]:
    if isinstance(source, Constant):
        raise NotImplementedError("a result of the call is a constant of the program: give a copy of it, `.clone()`")
    return ["result" if isinstance(source, Result) else "argument", source.number]


def _restored_source(source: Sequence[Any]) -> Source:
    kind, number = source
    return Result(number) if kind == "result" else Argument(number)


def _output(output: Output, memories: dict[Any, int]) -> Described:
    """One of the program's outputs; `memories` numbers what outputs share."""
    if isinstance(output, PythonValue):
        return {"kind": "value", "value": output.value}
    described = {"source": _source(output.source), "spec": _spec(output.spec), "device": str(output.device)}
    if isinstance(output, ArgumentItself):
        return {"kind": "argument", **described}
    if isinstance(output, OwnTensor):
        memory = None if output.memory is None else memories.setdefault(output.memory, len(memories))
        return {"kind": "own", **described, "memory": memory, "copied": output.copied}
    if output.calls:
        raise NotImplementedError(
            f"a result is a view that {output.calls[0].target} makes of another one: give a copy of it, `.clone()`"
        )
    return {"kind": "view", **described, "base": _output(output.base, memories), "detached": output.detached}


def _restored_output(output: Described, device: Device) -> Output:
    return PythonValue(output["value"]) if output["kind"] == "value" else _restored_tensor(output, device)


def _restored_tensor(output: Described, device: Device) -> Any:
    source, spec = _restored_source(output["source"]), _restored_spec(device, output["spec"])
    where = torch.device(output["device"])
    if output["kind"] == "own":
        return OwnTensor(source, spec, where, output["memory"], output["copied"])
    if output["kind"] == "view":
        return View(source, spec, where, _restored_tensor(output["base"], device), output["detached"])
    assert isinstance(source, Argument)
    return ArgumentItself(source, spec, where)


def _check(check: checks.Check) -> Described:
    """A check, with its message's text around the value that was checked."""
    first, second = (check.error(value) for value in _PROBES)
    message = str(first).replace("{", "{{").replace("}", "}}").replace(str(_PROBES[0]), "{value}")
    if message.format(value=_PROBES[1]) != str(second):  # it depends on the value in another way
        message = "a check of the program failed for the value {value}"
    return {"call": check.call & ((1 << checks.NESTED) - 1), "error": type(first).__name__, "message": message}


def _restored_check(check: Mapping[str, Any]) -> checks.Check:
    kind = checks.KINDS.get(check["error"], RuntimeError)
    return checks.Check(check["call"], lambda value: kind(check["message"].format(value=value)))
