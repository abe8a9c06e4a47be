"""What a program of the fuzzer is: Python statements about tensors `t0`, `t1`, ..., and what running them shows."""

from __future__ import annotations

import math
import re
import warnings
from typing import Any, NamedTuple

import torch

import lazy_runtime
from lazy_runtime.tensor.xla_tensor import unwrap

#: The dtypes that statements name.
DTYPES = {name: getattr(torch, name) for name in ("float32", "float64", "int32", "int64", "bool", "uint8", "complex64")}


class Program(NamedTuple):
    """Statements, one string each. Compiled, only `inside` is compiled: `before` makes its arguments, and `after` works
    on its results. A statement that raises has no effect but for what torch has done until then; the next one follows.
    """

    before: tuple[str, ...]
    inside: tuple[str, ...] = ()
    after: tuple[str, ...] = ()

    @staticmethod
    def parse(text: str) -> Program:
        """The program that is written as `str(program)` shows it."""
        sections: list[list[str]] = [[]]
        for line in text.strip().splitlines():
            if line.strip() == "---":
                sections.append([])
            else:
                sections[-1].append(line.strip())
        return Program(*map(tuple, sections))

    @property
    def statements(self) -> tuple[str, ...]:
        return self.before + self.inside + self.after

    def __str__(self) -> str:
        return "\n---\n".join("\n".join(section) for section in self)


class Raised(NamedTuple):
    """The exception of a statement."""

    type: str
    message: str

    @staticmethod
    def of(error: BaseException) -> Raised:
        message = str(error).partition("\nException raised from ")[0]  # what torch's own handlers have added
        # some messages name the type of a tensor, and with it the device
        message = re.sub(r"(torch\.(xla\.)?|XLA|Meta|CPU)(\w+?)(Type|Tensor)\b", r"\3", message)
        # autograd makes the gradients of a view that was written to anew: by `as_strided` on the CPU, by the views'
        # own operators where a device has no strides
        message = re.sub(r"which is output (\d+) of \w+,", r"which is output \1 of a view,", message)
        # `reshape` of what it can view is one operator of CPUs' and another one of all other devices'
        message = re.sub(r"^Output (\d+) of (ReshapeAlias|View) is a view", r"Output \1 of View is a view", message)
        return Raised(type(error).__name__, message)


class Look(NamedTuple):
    """All that one tensor shows."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]  # of the dimensions of more than one element
    offset: int
    contiguous: bool
    requires_grad: bool
    leaf: bool | Raised
    version: int
    same: str  # the first name of this very object

    @staticmethod
    def of(tensor: torch.Tensor, name: str) -> Look:
        return Look(
            tensor.dtype,
            tuple(tensor.shape),
            # where there is one element, or none, no two of them lie a stride apart, and torch's kernels (CPU, meta) do
            # not agree on it
            tuple(
                step for step, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1 and tensor.numel()
            ),
            int(tensor.storage_offset()) if tensor.numel() else 0,
            tensor.is_contiguous(),
            tensor.requires_grad,
            _is_leaf(tensor),
            tensor._version,
            name,
        )


class Machine:
    """Runs statements on one device.

    Attributes:
        names: the variables of the program.
        reads: what the program has read so far.
    """

    def __init__(self, device: str):
        self.device = device
        self.reads: list[Any] = []
        self.globals: dict[str, Any] = {
            "torch": torch,
            "device": device,
            "values": self.values,
            "strided": self.strided,
            "read": self.read,
            "sync": self.sync,
            **DTYPES,
        }
        self.names: dict[str, Any] = {}

    def values(self, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """A tensor of small integers; its memory holds nothing else."""
        return _integers(math.prod(shape), dtype).reshape(shape).clone().to(self.device)

    def strided(self, shape: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Any:
        """A tensor with these strides that is no view; its memory may have gaps, which hold numbers too."""
        tensor = torch.empty_strided(shape, stride, dtype=dtype, device=self.device)
        count = tensor.untyped_storage().nbytes() // dtype.itemsize
        tensor.as_strided((count,), (1,), 0).copy_(_integers(count, dtype))
        return tensor

    @torch.compiler.disable
    def read(self, value: Any) -> None:
        self.reads.append(value)

    @torch.compiler.disable
    def sync(self) -> None:
        if self.device != "cpu":
            lazy_runtime.sync()

    def step(self, statement: str) -> Raised | None:
        """Runs one statement."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch warns of writes that are deprecated, once per process
                exec(statement, self.globals, self.names)
        except Exception as error:
            return Raised.of(error)
        return None

    def tensors(self) -> dict[str, torch.Tensor]:
        """The variables that hold tensors."""
        return {name: value for name, value in self.names.items() if isinstance(value, torch.Tensor)}

    def looks(self) -> dict[str, Look]:
        first: dict[int, str] = {}
        return {name: Look.of(x, first.setdefault(id(x), name)) for name, x in self.tensors().items()}

    def contents(self) -> dict[str, torch.Tensor]:
        """All values and gradients, as they are now: CPU tensors, or the insides of xla tensors, which never change and
        are not computed yet.
        """
        found = {}
        for name, tensor in self.tensors().items():
            found[name] = _frozen(tensor)
            if _is_leaf(tensor) is True and tensor.grad is not None:
                found[f"{name}.grad"] = _frozen(tensor.grad)
        return found

    def touch(self) -> None:
        """Writes another number through each variable: what they hold then tells which of them share memory."""
        for power, tensor in enumerate(self.tensors().values()):
            with torch.no_grad():
                if not tensor.is_inference() and _is_writable(tensor):
                    tensor.add_(3**power) if tensor.dtype is not torch.bool else tensor.logical_not_()


def _is_leaf(tensor: torch.Tensor) -> bool | Raised:
    try:
        return tensor.is_leaf
    except RuntimeError as error:  # one of several views of one operator, which somebody has written to
        return Raised.of(error)


def _integers(count: int, dtype: torch.dtype) -> torch.Tensor:
    return (torch.arange(count, device="cpu") * 5 % 7 - 2).to(dtype)


def _frozen(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.detach().resolve_conj()
    if tensor.device.type == "xla":
        return unwrap(tensor)
    return tensor.clone(memory_format=torch.contiguous_format)


def _is_writable(tensor: torch.Tensor) -> bool:
    return torch.unique(positions(tensor)).numel() == tensor.numel()


def positions(tensor: torch.Tensor) -> torch.Tensor:
    """Where in its storage each element lies, in elements."""
    place = torch.tensor(int(tensor.storage_offset()), device="cpu")
    for size, step in zip(tensor.shape, tensor.stride(), strict=True):
        place = place[..., None] + torch.arange(size, device="cpu") * step
    return place
