"""Results that a program does not give as they are: those that occur twice, are inputs, or are None."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .. import _XLAC


class Deduper:
    """Leaves out what occurs again, and puts it back.

    Attributes:
        permute_for_orig: for each element of the list, its number in the shorter one.
    """

    def __init__(self) -> None:
        self.permute_for_orig: list[int] = []

    def dedup(self, origlist: Sequence[Any]) -> list[Any]:
        """The list with each element once; xla tensors are one where their values are."""
        numbers: dict[Any, int] = {}
        kept = []
        self.permute_for_orig = []
        for each in origlist:
            is_value = isinstance(each, torch.Tensor) and each.device.type == "xla"
            key = _XLAC._unique_id_for_ir_and_data(each) if is_value else id(each)
            if key not in numbers:
                numbers[key] = len(kept)
                kept.append(each)
            self.permute_for_orig.append(numbers[key])
        return kept

    def recover(self, deduped_list: Sequence[Any]) -> list[Any]:
        """The list as long as it was, of these elements."""
        return [deduped_list[number] for number in self.permute_for_orig]


class NoneRemover:
    """Leaves out None, and puts it back.

    Attributes:
        none_poslist: where they were.
    """

    def __init__(self) -> None:
        self.none_poslist: list[int] = []

    def remove_nones(self, value_list: Any) -> Any:
        """The values without None: the list itself, which is changed, or a new tuple.

        Raises:
            TypeError: it is neither a list nor a tuple.
        """
        self._require(value_list)
        self.none_poslist = [number for number, each in enumerate(value_list) if each is None]
        kept = [each for each in value_list if each is not None]
        if isinstance(value_list, tuple):
            return tuple(kept)
        value_list[:] = kept
        return value_list

    def add_nones(self, value_list: Any) -> Any:
        """The values with None where it was: the list itself, which is changed, or a new tuple.

        Raises:
            TypeError: it is neither a list nor a tuple.
        """
        self._require(value_list)
        values = list(value_list)
        for place in self.none_poslist:
            values.insert(place, None)
        if isinstance(value_list, tuple):
            return tuple(values)
        value_list[:] = values
        return value_list

    def _require(self, value_list: Any) -> None:
        if not isinstance(value_list, list | tuple):
            raise TypeError(f"value_list: expected a list or a tuple, got {type(value_list).__name__}")


class SpecialReturnHandler:
    """Puts results together of what a program gives and what it need not give.

    Args:
        trace_inputs: the tensors that it was recorded with.
        trace_outputs: the results that were recorded.
        trace_inputs_inplace_update_bool: for each input, whether it was written to.
        constant_outputs_and_indexes: pairs of a place among the results and a number that stands there.
    """

    def __init__(
        self,
        trace_inputs: Sequence[torch.Tensor],
        trace_outputs: Sequence[torch.Tensor],
        trace_inputs_inplace_update_bool: Sequence[bool],
        constant_outputs_and_indexes: Sequence[tuple[int, Any]],
    ):
        self._constants = list(constant_outputs_and_indexes)
        self._deduper = Deduper()
        kept = self._deduper.dedup(trace_outputs)
        inputs = {
            _XLAC._unique_id_for_ir_and_data(each): number
            for number, each in enumerate(trace_inputs)
            if not trace_inputs_inplace_update_bool[number]
        }
        found = [(place, inputs.get(_XLAC._unique_id_for_ir_and_data(each))) for place, each in enumerate(kept)]
        self._returned = [(place, number) for place, number in found if number is not None]

    def addDumbReturn(self, real_inputs: Sequence[torch.Tensor], real_outputs: list[Any]) -> list[Any]:
        """All results of a run.

        Args:
            real_inputs: what the program was run with.
            real_outputs: what it gave.
        """
        given = list(real_outputs)
        for place, number in self._returned:
            given.insert(place, real_inputs[number])
        results = self._deduper.recover(given)
        for place, value in self._constants:
            results.insert(place, value)
        return results
