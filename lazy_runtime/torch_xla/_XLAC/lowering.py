"""`_XLAC.lowering`: the pending program of tensors as HLO, and which tensor each of its parameters is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from ...debug import graphs
from ...tensor import xla_tensor

if TYPE_CHECKING:
    from ...compilation.linearization import Linearized


class LoweringContext:
    """Lowers what tensors wait for.

    Args:
        name: of the HLO module.
    """

    def __init__(self, name: str = "FnComputation"):
        self._name = name
        self._numbered: Linearized | None = None

    def build(self, tensors: Sequence[torch.Tensor]) -> None:
        """Takes the pending program whose results are these tensors."""
        self._numbered = graphs.of_tensors(tensors)

    def buildforiloop(
        self, tensors: Sequence[torch.Tensor], additional_inputs_list: Sequence[torch.Tensor] = ()
    ) -> None:
        """Takes a program as the body of a loop.

        Raises:
            NotImplementedError: always: jax makes the loop, with its body and its condition.
        """
        raise NotImplementedError(
            "LoweringContext.buildforiloop: experimental.fori_loop and while_loop make the loop with its body; "
            "core.xla_builder.Op.mkwhile makes one operation by operation"
        )

    def hlo(self) -> bytes:
        """The program as a serialized `HloModuleProto`, before XLA's optimizations."""
        return graphs.hlo_proto_of(self._built(), self._name)

    def hlo_text(self) -> str:
        """The same as HLO text."""
        return graphs.hlo_of(self._built(), self._name)

    def hlo_json(self) -> str:
        """Not there.

        Raises:
            NotImplementedError: always: jaxlib writes no protobuf as JSON.
        """
        raise NotImplementedError(
            "LoweringContext.hlo_json: jaxlib writes no protobuf as JSON; hlo() is a serialized HloModuleProto, and "
            "hlo_text() its text"
        )

    def parameter_id_tensor_mapping(self) -> dict[int, torch.Tensor]:
        """Number of a parameter → its value on the CPU.

        Numbers that change from step to step are no tensors, and are in the last parameters.
        """
        return {number: each.cpu() for number, each in self.device_parameter_id_tensor_mapping().items()}

    def device_parameter_id_tensor_mapping(self) -> dict[int, torch.Tensor]:
        """Number of a parameter → a tensor on the device with its value."""
        numbered = self._built()
        made: Any = [
            xla_tensor.to_functional(xla_tensor.make(_handle(value), spec))
            for value, spec in zip(numbered.leaves, numbered.graph.leaves, strict=True)
        ]
        return dict(enumerate(made))

    def tensor_parameter_id(self, tensor: torch.Tensor) -> int:
        """The number of the parameter that a tensor is; -1 if it is none."""
        value = xla_tensor.unwrap(tensor.detach()).handle.value
        leaves = self._built().leaves
        return next((number for number, leaf in enumerate(leaves) if leaf is value), -1)

    def set_name_string(self, name: str) -> None:
        """Names the HLO module."""
        self._name = name

    def get_name_string(self) -> str:
        """What the HLO module is called."""
        return self._name

    def _built(self) -> Linearized:
        if self._numbered is None:
            raise RuntimeError("LoweringContext: call build(tensors) first")
        return self._numbered


def _handle(value: Any) -> Any:
    from ...ir.graph import Handle

    found = value.owner() if value.owner is not None else None
    return Handle(value) if found is None else found


__all__ = ["LoweringContext"]
