"""A model of StableHLO functions, with its weights."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import torch

from ...compat.jaxlib import stablehlo
from ...compat.torch import tree_leaves, tree_unflatten, treespec_loads
from ...tensor import host_arrays
from ..core.xla_builder import from_stablehlo, user_computation
from .bundle import (
    InputLocation,
    StableHLOExportOptions,
    StableHLOFunc,
    StableHLOJSONSerializer,
    StableHLOModelBundle,
    VariableSignature,
    VariableType,
    stablehlo_obj_hook,
)

__all__ = ["StableHLOGraphModule"]


class StableHLOGraphModule:
    """Calls the first function of a bundle on xla.

    Args:
        bundle: of at least one function.
    """

    def __init__(self, bundle: StableHLOModelBundle):
        self._bundle = bundle
        self._functions = {each.meta.name: each for each in bundle.stablehlo_funcs}
        self._default = bundle.stablehlo_funcs[0].meta.name
        self._computations: dict[str, Any] = {}

    def __call__(self, *args: Any) -> Any:
        """What the first function gives; see `evaluate`."""
        return self.evaluate(self._default, args)

    def evaluate(self, method_name: str, args: Any) -> Any:
        """What a function gives, as xla tensors, nested as the exported program nests it.

        Args:
            args: tensors on any device, nested as the program's arguments.

        Raises:
            KeyError: there is no such function, or the bundle was saved without weights.
        """
        function = self._function(method_name)
        flat = tree_leaves(args)
        given = [
            self._value(location, signature, flat)
            for location, signature in zip(function.meta.input_locations, function.meta.input_signature, strict=True)
        ]
        found = user_computation(method_name, given, self._computation(method_name))
        if function.meta.output_pytree_spec is None:
            return found
        return tree_unflatten(found, treespec_loads(function.meta.output_pytree_spec))

    def _computation(self, name: str) -> Any:
        if name not in self._computations:
            some: Any = jax.jit(lambda: 0).lower().compiler_ir("stablehlo")  # its context knows the dialects
            module: Any = stablehlo.deserialize_portable_artifact(some.context, self._function(name).bytecode)
            stream = io.BytesIO()
            module.operation.write_bytecode(stream)
            self._computations[name] = from_stablehlo(name, stream.getvalue())
        return self._computations[name]

    def _value(self, location: InputLocation, signature: VariableSignature, flat: list[Any]) -> torch.Tensor:
        dtype = getattr(torch, signature.dtype)
        if location.type_ is VariableType.INPUT_ARG:
            return torch.as_tensor(flat[location.position]).to("xla", dtype)
        if location.type_ is VariableType.PARAMETER:
            if location.name not in self._bundle.state_dict:
                raise KeyError(f"{location.name}: the program was exported or saved without its weights")
            return _tensor(self._bundle.state_dict[location.name], dtype).to("xla")
        return _tensor(self._bundle.additional_constants[location.position], dtype).to("xla")

    def _function(self, name: str) -> StableHLOFunc:
        if name not in self._functions:
            raise KeyError(f"there is no function {name!r}; there are {sorted(self._functions)}")
        return self._functions[name]

    def get_stablehlo_bytecode(self, method_name: str | None = None) -> bytes:
        """A function, by default the first, in StableHLO's portable form."""
        return self._function(method_name or self._default).bytecode

    def get_stablehlo_text(self, method_name: str | None = None) -> str | None:
        """The same as text, if it was kept."""
        return self._function(method_name or self._default).text

    def save(self, directory_path: Any, options: StableHLOExportOptions | None = None) -> None:
        """Writes files: `functions/NAME.meta`, `.bytecode` and `.mlir`, `constants/N`, and `data/NAME` of the weights.

        Args:
            directory_path: is made if it is missing.
            options: whether there are weights.
        """
        root, options = Path(directory_path), options or StableHLOExportOptions()
        kinds: dict[str, dict[str, np.ndarray]] = {
            "constants": {str(n): each for n, each in enumerate(self._bundle.additional_constants)}
        }
        if options.save_weights:
            kinds["data"] = self._bundle.state_dict
        for kind, arrays in kinds.items():
            (root / kind).mkdir(parents=True, exist_ok=True)
            for name, array in arrays.items():
                with (root / kind / name).open("wb") as file:
                    np.save(file, array)
        functions = root / "functions"
        functions.mkdir(parents=True, exist_ok=True)
        for each in self._bundle.stablehlo_funcs:
            (functions / f"{each.meta.name}.meta").write_text(json.dumps(each.meta, cls=StableHLOJSONSerializer))
            (functions / f"{each.meta.name}.bytecode").write_bytes(each.bytecode)
            if each.text is not None:
                (functions / f"{each.meta.name}.mlir").write_text(each.text)

    @classmethod
    def load(cls, directory_path: Any) -> StableHLOGraphModule:
        """Reads what `save` has written.

        Raises:
            FileNotFoundError: there is no function.
        """
        root = Path(directory_path)
        found = []
        for path in sorted((root / "functions").glob("*.meta")):
            text = path.with_suffix(".mlir")
            meta = json.loads(path.read_text(), object_hook=stablehlo_obj_hook)
            bytecode = path.with_suffix(".bytecode").read_bytes()
            found.append(StableHLOFunc(meta, bytecode, text.read_text() if text.exists() else None))
        if not found:
            raise FileNotFoundError(f"there is no function in {root / 'functions'}")
        constants = sorted((root / "constants").glob("*"), key=lambda path: int(path.name))
        state = {path.name: np.load(path) for path in sorted((root / "data").glob("*"))}
        return cls(StableHLOModelBundle(state, [np.load(path) for path in constants], found))


def _tensor(array: Any, dtype: torch.dtype) -> torch.Tensor:
    """An array as a tensor; one of a dtype that numpy does not know comes from a file as bytes."""
    if array.dtype.kind == "V":
        return torch.frombuffer(bytearray(array.tobytes()), dtype=dtype).reshape(array.shape)
    return host_arrays.from_numpy(np.array(array))
