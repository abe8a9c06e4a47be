"""A file becomes a function again."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from . import archive, requirements, tree
from .running import LoadedProgram


def load(path: str | os.PathLike[str], *, digest: str | None = None, key: bytes | None = None) -> LoadedFunction:
    """Reads what `package` has written. Nothing in it is unpickled; its machine code runs in this process, so it must
    be signed with a key that is known here, or be the one that was told of.

    Args:
        digest: the package's, from somebody who is trusted; it need not be signed then.
        key: what it was signed with; by default the user's own key, which is made on each machine by itself and lies in
            `$XDG_CONFIG_HOME/lazy_runtime/package.key`.

    Raises:
        FileNotFoundError: there is no such file.
        PackageError: it is no package, torn or damaged, or was made for other versions or another processor or device.
        UntrustedPackageError: nothing says that its code may run here.
    """
    name = os.fspath(path)
    contents = archive.read(path, digest, key)
    device = requirements.device_of(contents.description, name)
    return LoadedFunction(contents.description, LoadedProgram(contents, device), name)


class LoadedFunction:
    """Calls a packaged function. Several threads may, where it writes to no buffers."""

    def __init__(self, described: Mapping[str, Any], program: LoadedProgram, name: str):
        self._name = name
        self._program = program
        self._arguments: dict[str, tree.Described] = described["arguments"]
        self._parameters: list[str] = described["parameters"]
        self._results: tree.Described = described["results"]
        self._inputs = [(getattr(torch, each["dtype"]), tuple(each["shape"])) for each in described["inputs"]]
        self._device_type: str = described["device"]

    @property
    def state(self) -> Mapping[str, torch.Tensor]:
        """The buffers that it writes to, by name, as they are now."""
        return self._program.state

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the packaged function gives for arguments like those that it was packaged for.

        Raises:
            TypeError: they are other ones; the message says which.
            RuntimeError: gradients are asked for, or an argument that is written to shares memory with another one.
        """
        results = self._program(self._tensors(args, kwargs))
        return tree.restore(self._results, results, sys.modules)

    def _tensors(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
        """The tensors among the arguments, in order."""
        if len(args) > len(self._parameters):
            raise TypeError(f"{len(args)} positional arguments, {self._name} was packaged for {self._signature()}")
        named = {**dict(zip(self._parameters, args, strict=False)), **kwargs}
        if named.keys() != self._arguments.keys() or len(named) < len(args) + len(kwargs):
            raise TypeError(
                f"called with {', '.join(named) or 'nothing'}; {self._name} was packaged for {self._signature()}"
            )
        tensors: list[torch.Tensor] = []
        number = tree.numbering(tensors)
        for each, expected in self._arguments.items():
            found = tree.describe(named[each], number, each)
            if found != expected:
                raise TypeError(_difference(each, found, expected, self._name))
        self._check(tensors)
        return tensors

    def _check(self, tensors: Sequence[torch.Tensor]) -> None:
        for number, (tensor, (dtype, shape)) in enumerate(zip(tensors, self._inputs, strict=True)):
            if tensor.dtype != dtype or tuple(tensor.shape) != shape or tensor.device.type != self._device_type:
                raise TypeError(
                    f"{self._path(number)} is {_look(tensor.dtype, tensor.shape, tensor.device.type)}; {self._name} "
                    f"was packaged for {_look(dtype, shape, self._device_type)}"
                )
            if tensor.requires_grad and torch.is_grad_enabled():
                raise RuntimeError(
                    f"{self._path(number)} requires gradients, which a packaged function does not know: call it under "
                    "torch.no_grad()"
                )
        for written in self._program.written:
            memory = tensors[written].untyped_storage().data_ptr()
            if sum(each.untyped_storage().data_ptr() == memory for each in tensors) > 1:
                raise RuntimeError(f"{self._path(written)}, which is written to, shares memory with another argument")

    def _path(self, number: int) -> str:
        leaves = [leaf for name, described in self._arguments.items() for leaf in tree.flat(described, name)]
        return next(path for path, kind, content in leaves if kind == "tensor" and content == number)

    def _signature(self) -> str:
        return f"({', '.join(self._arguments)})"


def _look(dtype: torch.dtype, shape: Sequence[int], device: str) -> str:
    return f"a tensor of {str(dtype).removeprefix('torch.')} {list(shape)} on {device}"


def _difference(name: str, found: tree.Described, expected: tree.Described, package: str) -> str:
    here, there = list(tree.flat(found, name)), list(tree.flat(expected, name))
    for mine, theirs in zip(here, there, strict=False):
        if mine != theirs:
            return (
                f"{mine[0]} is {_said(mine)}; {package} was packaged for {theirs[0]}, {_said(theirs)}: numbers and "
                "strings are a part of the program"
            )
    return f"{name} has {len(here)} values; {package} was packaged for {len(there)} there, or they are nested otherwise"


def _said(leaf: tuple[str, str, Any]) -> str:
    _, kind, content = leaf
    return "a tensor" if kind == "tensor" else repr(content)
