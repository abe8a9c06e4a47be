"""From `torch.export`'s programs to StableHLO."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import jax
import torch
from torch.export import ExportedProgram, default_decompositions
from torch.export.graph_signature import InputKind, OutputKind

from ...compat.jaxlib import serialize_portable_artifact, stablehlo
from ...compat.torch import OpOverload, tree_leaves, treespec_dumps
from ...functions.traced import TracedFunction
from ...ir import dtypes, lowering_context
from ...ir.spec import TensorSpec
from ...lowering import checks
from ...platform import xla_devices
from ...tensor import host_arrays
from ..experimental.stablehlo_custom_call import extract_custom_call_outputs_shape_dtype, stablehlo_custom_call
from .bundle import (
    InputLocation,
    StableHLOExportOptions,
    StableHLOFunc,
    StableHLOFunctionMeta,
    StableHLOModelBundle,
    VariableSignature,
)
from .graph_module import StableHLOGraphModule

__all__ = [
    "XLAExportInterpreter",
    "exported_program_to_stablehlo",
    "save_as_stablehlo",
    "save_torch_model_as_stablehlo",
]


class XLAExportInterpreter(torch.fx.Interpreter):
    """Runs a program of operators on xla.

    Args:
        module: the program.
        device: where its factories make their tensors.
        custom_ops_allowed_in_graph: namespaces of operators that become custom calls.
        gm_serializer: accepted for PyTorch/XLA's sake; None.
    """

    def __init__(
        self,
        module: torch.fx.GraphModule,
        device: Any,
        custom_ops_allowed_in_graph: set[str],
        gm_serializer: Any = None,
    ):
        super().__init__(module)
        self._device, self.custom_ops_allowed_in_graph = device, custom_ops_allowed_in_graph
        self.gm_serializer = gm_serializer

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """An operator, on the device."""
        if "device" in kwargs:
            kwargs = {**kwargs, "device": self._device}
        return super().call_function(target, args, kwargs)

    def run_node(self, n: torch.fx.Node) -> Any:
        """A node: an operator of an allowed namespace is a custom call of its name."""
        target: Any = n.target
        if isinstance(target, OpOverload) and target.namespace in self.custom_ops_allowed_in_graph:
            args, _ = self.fetch_args_kwargs_from_env(n)
            return stablehlo_custom_call(args, str(target), *extract_custom_call_outputs_shape_dtype(n))
        return super().run_node(n)


def exported_program_to_stablehlo(
    exported_model: ExportedProgram, options: StableHLOExportOptions | None = None
) -> StableHLOGraphModule:
    """An exported program as a StableHLO function called `forward`. What it writes to its buffers is left out.

    Args:
        exported_model: of static sizes.
        options: see `StableHLOExportOptions`.

    Raises:
        NotImplementedError: its sizes are symbolic, it takes something else than tensors and numbers, or an operator
            has no lowering to XLA that stands without torch.
    """
    return StableHLOGraphModule(_bundle(exported_model, options or StableHLOExportOptions()))


def _bundle(program: ExportedProgram, options: StableHLOExportOptions) -> StableHLOModelBundle:
    if options.export_node_metadata:
        raise NotImplementedError("export_node_metadata: the program does not say which node an operator comes from")
    with warnings.catch_warnings():  # of what torch does to its own trees
        warnings.filterwarnings("ignore", ".*LeafSpec", FutureWarning)
        program = program.run_decompositions(default_decompositions())
    values = _inputs(program, options)
    tensors = [(place, value) for place, value in enumerate(values) if isinstance(value, torch.Tensor)]
    device = xla_devices.get(0)
    kept = [
        place
        for place, spec in enumerate(program.graph_signature.output_specs)
        if spec.kind in (OutputKind.USER_OUTPUT, OutputKind.LOSS_OUTPUT)
    ]
    interpreter = XLAExportInterpreter(
        program.graph_module, device.torch_device, options.custom_ops_allowed_in_graph, None
    )

    def forward(*given: torch.Tensor) -> list[Any]:
        filled = list(values)
        for (place, _), tensor in zip(tensors, given, strict=True):
            filled[place] = tensor
        with torch.no_grad():
            found = interpreter.run(*filled, enable_io_processing=False)
            interpreter.env.clear()  # it keeps the results, and with a view its base
        return [found[place] for place in kept]

    specs = [TensorSpec.of(device, each.dtype, tuple(each.shape)) for _, each in tensors]
    traced = TracedFunction(forward, specs, device, "the exported program")
    bytecode, text = _lowered(traced)
    places = {number: place for number, (place, _) in enumerate(tensors)}
    locations, constants, state = _locations(program, traced, places, values, options)
    used = {location.position for location in locations if location.type_.value == "input_arg"}
    users = _users(program)
    in_spec: Any = program.call_spec.in_spec
    out_spec: Any = program.call_spec.out_spec
    meta = StableHLOFunctionMeta(
        "forward",
        stablehlo.get_current_version(),
        [_signature(spec) for spec in traced.operand_specs],
        [_signature(spec) for spec in traced.specs],
        locations,
        [
            (InputLocation.input_arg(number), _signature(values[place]))
            for number, place in enumerate(users)
            if number not in used
        ],
        treespec_dumps(in_spec),
        treespec_dumps(out_spec),
    )
    function = StableHLOFunc(meta, bytecode, text if options.include_human_readable_text else None)
    return StableHLOModelBundle(state, constants, [function])


def _users(program: ExportedProgram) -> list[int]:
    """Which inputs of the program are the user's arguments."""
    specs = program.graph_signature.input_specs
    return [place for place, spec in enumerate(specs) if spec.kind is InputKind.USER_INPUT]


def _inputs(program: ExportedProgram, options: StableHLOExportOptions) -> list[Any]:
    """The values that the program is traced for: weights, constants and arguments."""
    if options.override_tracing_arguments is not None:
        example: Any = options.override_tracing_arguments, dict(options.override_tracing_kwargs or {})
    else:
        example = program.example_inputs
    if example is None:
        raise ValueError("the program has no example inputs: pass options with override_tracing_arguments")
    given = iter(tree_leaves(example))
    found: list[Any] = []
    for node, spec in zip(program.graph.find_nodes(op="placeholder"), program.graph_signature.input_specs, strict=True):
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor) and any(not isinstance(size, int) for size in value.shape):
            raise NotImplementedError(
                f"the argument {node.name} has symbolic sizes {list(value.shape)}: export the program for fixed ones"
            )
        if spec.kind is InputKind.USER_INPUT:
            found.append(next(given))
        elif spec.kind in (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR):
            target = str(spec.target)
            source: Any = program.state_dict if target in program.state_dict else program.constants
            found.append(source[target])
        else:
            raise NotImplementedError(
                f"the program takes {node.name}, which is no tensor and no number ({spec.kind.name})"
            )
    return found


def _lowered(traced: TracedFunction) -> tuple[bytes, str]:
    """The program in StableHLO's portable form, and as text."""

    def function(*operands: Any) -> list[Any]:
        # XLA's own operators, not calls of torch's kernels
        with checks.collecting(), lowering_context.changed(is_sharded=True):
            return list(traced.evaluate(operands))

    structs = [spec.struct() for spec in traced.operand_specs]
    with dtypes.x64():
        lowered = jax.jit(function, keep_unused=True).lower(*structs)
    text = lowered.as_text()
    if "callback" in text:
        raise NotImplementedError(
            "the program calls operators of torch that have no lowering to XLA, which StableHLO cannot hold: see "
            "torch_xla.debug.metrics.counter_names() for their names"
        )
    return serialize_portable_artifact(lowered.compiler_ir("stablehlo"), stablehlo.get_current_version()), text


def _locations(
    program: ExportedProgram,
    traced: TracedFunction,
    places: dict[int, int],
    values: Sequence[Any],
    options: StableHLOExportOptions,
) -> tuple[list[InputLocation], list[Any], dict[str, Any]]:
    """Which value each input of the StableHLO function is, the constants, and the weights."""
    specs, users = program.graph_signature.input_specs, _users(program)
    locations, constants, state = [], [], {}
    for leaf in traced.operands:
        if leaf not in places:
            captured = traced.captured[leaf - len(places)]
            locations.append(InputLocation.constant(len(constants)))
            constants.append(host_arrays.to_numpy(captured.cpu()))
            continue
        place = places[leaf]
        if specs[place].kind is InputKind.USER_INPUT:
            locations.append(InputLocation.input_arg(users.index(place)))
        elif specs[place].kind is InputKind.CONSTANT_TENSOR:
            locations.append(InputLocation.constant(len(constants)))
            constants.append(host_arrays.to_numpy(values[place].detach().cpu()))
        else:
            locations.append(InputLocation.parameter(str(specs[place].target)))
    if options.export_weights:
        for place, spec in enumerate(specs):
            if spec.kind in (InputKind.PARAMETER, InputKind.BUFFER):
                state[str(spec.target)] = host_arrays.to_numpy(values[place].detach().cpu().contiguous())
    return locations, constants, state


def _signature(value: Any) -> VariableSignature:
    if not isinstance(value, torch.Tensor | TensorSpec):
        return VariableSignature([], type(value).__name__)
    return VariableSignature(list(value.shape), str(value.dtype).removeprefix("torch."))


def save_as_stablehlo(
    exported_model: ExportedProgram, stablehlo_dir: Any, options: StableHLOExportOptions | None = None
) -> None:
    """Exports a program and writes it to a folder (`StableHLOGraphModule.save`)."""
    exported_program_to_stablehlo(exported_model, options).save(stablehlo_dir, options)


def save_torch_model_as_stablehlo(
    torchmodel: torch.nn.Module, args: tuple[Any, ...], path: Any, options: StableHLOExportOptions | None = None
) -> None:
    """Exports a module for arguments that look as these and writes it to a folder."""
    save_as_stablehlo(torch.export.export(torchmodel, args), path, options)
