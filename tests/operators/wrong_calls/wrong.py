"""Wrong calls of an operator: a sample of torch's with one thing changed at random, the same at each run."""

from __future__ import annotations

import dataclasses
import math
import random
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from .. import rows, ties
from ..arguments import Target, arguments, place
from ..case import Call, Case, Wrap

#: How many calls that the CPU refuses are drawn for an entry, and out of how many at most: most changes of a sample of
#: an elementwise operator leave a call that is right.
WANTED, DRAWN = 20, 2000

#: Elements of a sample's tensors together that a call may have.
_LARGEST = 20_000

#: Entries whose CPU kernels read beyond operands of wrong sizes, which may end the process.
_CRASHING = re.compile(".*batch_norm.*|lu_unpack")

_DTYPES = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.complex64,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
)


@dataclasses.dataclass(frozen=True)
class Wrong(Case):
    """One changed call.

    Attributes:
        kind: the name of the change.
        host: the number of the tensor argument that stays on the CPU; None for all on the device.
        host_is_number: it has no dimensions, as those have that torch takes from the CPU on any device.
    """

    kind: str = ""
    host: int | None = None
    host_is_number: bool = False


@dataclasses.dataclass
class Draft:
    """A call's arguments, which a change may edit.

    Attributes:
        leaves: of the positional and keyword arguments.
        host: see `Wrong.host`.
    """

    leaves: list[Any]
    structure: TreeSpec
    host: int | None = None

    def places(self, *kinds: type) -> list[int]:
        """Numbers of the leaves of exactly these types."""
        return [number for number, leaf in enumerate(self.leaves) if type(leaf) in kinds]

    def tensors(self) -> list[int]:
        return [number for number, leaf in enumerate(self.leaves) if isinstance(leaf, torch.Tensor)]


#: (draft, random numbers) → what was changed in words; None where the draft has nothing of the kind
Change = Callable[[Draft, random.Random], str | None]


def cases(row: rows.Row) -> Iterator[Wrong]:
    """Up to `DRAWN` changed calls of an entry, each with one change."""
    entry = rows.entry_of(row)
    dice = random.Random(f"{row.database}/{row.entry}/wrong")
    samples = _samples(entry)
    for _ in range(DRAWN if samples else 0):
        sample = dice.choice(samples)
        leaves, structure = tree_flatten(([sample.input, *sample.args], dict(sample.kwargs)))
        draft = Draft(leaves, structure)
        (name,) = dice.choices(list(_CHANGES), [weight for weight, _ in _CHANGES.values()])
        words = _CHANGES[name][1](draft, dice)
        if words is not None and not (name in ("sizes", "kind") and _CRASHING.fullmatch(row.entry)):
            yield _case(entry, draft, name, words)


def _samples(entry: Any) -> list[Any]:
    """The entry's samples in float32, or in the first dtype that it takes, which are not too large."""
    taken = entry.supported_dtypes("cpu")
    if not taken:  # of another device alone
        return []
    dtype = next(dtype for dtype in (torch.float32, *_DTYPES, *sorted(taken, key=str)) if dtype in taken)
    found = []
    for sample in entry.sample_inputs("cpu", dtype):
        leaves = tree_flatten((sample.input, sample.args, sample.kwargs))[0]
        if sum(leaf.numel() for leaf in leaves if isinstance(leaf, torch.Tensor)) <= _LARGEST:
            found.append(sample)
    return found


def _case(entry: Any, draft: Draft, kind: str, words: str) -> Wrong:
    process = ties.UNORDERED.get(entry.name)

    def prepare(target: Target) -> Call:
        sample = _Sample(*_parts(draft))
        args, kwargs = arguments(entry, sample, target)
        if draft.host is not None and target.device != "cpu":
            leaves, structure = tree_flatten((args, kwargs))
            leaves[draft.host] = place(draft.leaves[draft.host], dataclasses.replace(target, device="cpu"))
            args, kwargs = tree_unflatten(leaves, structure)

        def call(wrap: Wrap) -> Any:
            result = wrap(entry.op)(*args, **kwargs)
            return process(result, *args, **kwargs) if process else result

        return call

    is_number = draft.host is not None and draft.leaves[draft.host].dim() == 0
    return Wrong(prepare, f"{words} in {_shown(draft)}", kind, draft.host, is_number)


@dataclasses.dataclass
class _Sample:
    input: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def _parts(draft: Draft) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    (first, *rest), kwargs = tree_unflatten(draft.leaves, draft.structure)
    return first, tuple(rest), kwargs


def _shown(draft: Draft) -> str:
    """The arguments in words."""

    def word(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        return f"{str(leaf.dtype).removeprefix('torch.')}{list(leaf.shape)}"

    args, kwargs = tree_unflatten([word(leaf) for leaf in draft.leaves], draft.structure)
    return f"{args} {kwargs}".replace("'", "")


# ---- the changes


def _dtype_of_one(draft: Draft, dice: random.Random) -> str | None:
    number = _choose(draft.tensors(), dice)
    return None if number is None else _cast(draft, [number], dice)


def _dtype_of_all(draft: Draft, dice: random.Random) -> str | None:
    return _cast(draft, draft.tensors(), dice) if draft.tensors() else None


def _cast(draft: Draft, numbers: Sequence[int], dice: random.Random) -> str:
    dtype = dice.choice([dtype for dtype in _DTYPES if dtype is not draft.leaves[numbers[0]].dtype])
    for number in numbers:
        draft.leaves[number] = draft.leaves[number].detach().to(dtype)
    return f"{dtype} for tensor {', '.join(map(str, numbers))}"


def _sizes(draft: Draft, dice: random.Random) -> str | None:
    number = _choose(draft.tensors(), dice)
    if number is None:
        return None
    x = draft.leaves[number].detach()
    if x.layout is not torch.strided:
        return None
    ways = ["more"] + (["fewer", "longer", "shorter", "none", "scalar"] if x.dim() else [])
    way = dice.choice(ways)
    dim = dice.randrange(x.dim()) if x.dim() else 0
    if way == "more":
        x = x.unsqueeze(dim)
    elif way == "fewer":
        x = x.select(dim, 0) if x.shape[dim] else x.sum(dim).to(x.dtype)
    elif way == "longer":
        x = torch.cat([x, x.narrow(dim, 0, min(x.shape[dim], dice.randint(1, 2)))], dim)
    elif way == "shorter":
        x = x.narrow(dim, 0, max(x.shape[dim] - 1, 0))
    elif way == "none":
        x = x.narrow(dim, 0, 0)
    else:
        x = x.reshape(-1)[0] if x.numel() else x.new_zeros(())
    draft.leaves[number] = x.clone()
    return f"sizes of tensor {number}: {way} at {dim}"


def _number(draft: Draft, dice: random.Random) -> str | None:
    number = _choose(draft.places(int, float), dice)
    if number is None:
        return None
    old = draft.leaves[number]
    new: list[Any] = [-1, 0, 1, -2, -7, 5, 100, 1.5, True]
    new += [old + 1, old - 1, -old - 1, float(old)] if math.isfinite(old) else []
    new += [-1.0, 0.0, 2.5, math.nan, math.inf, -math.inf] if type(old) is float else []
    draft.leaves[number] = dice.choice([each for each in new if type(each) is not type(old) or each != old])
    return f"{draft.leaves[number]!r} for {old!r}"


def _kind_of_argument(draft: Draft, dice: random.Random) -> str | None:
    number = _choose([*draft.places(int, float, bool, str, type(None)), *draft.tensors()], dice)
    if number is None:
        return None
    draft.leaves[number] = dice.choice(["nothing of the kind", None, [1.5], 3, 0.5, 1j, torch.tensor([2.0, 3.0])])
    return f"another kind of argument {number}"


def _word(draft: Draft, dice: random.Random) -> str | None:
    number = _choose(draft.places(str, torch.dtype), dice)
    if number is None:
        return None
    is_word = isinstance(draft.leaves[number], str)
    draft.leaves[number] = dice.choice(["sum", "none", "nothing"]) if is_word else dice.choice(_DTYPES)
    return f"argument {number} is {draft.leaves[number]}"


def _index(draft: Draft, dice: random.Random) -> str | None:
    """One element of a tensor of integers, which may be an index, a target, a length."""
    integers = [n for n in draft.tensors() if draft.leaves[n].dtype in (torch.int64, torch.int32)]
    number = _choose([n for n in integers if draft.leaves[n].numel()], dice)
    if number is None:
        return None
    x = draft.leaves[number].detach().clone(memory_format=torch.contiguous_format)
    value = dice.choice([-1, -2, -100, 7, 100, 100_000])
    x.view(-1)[dice.randrange(x.numel())] = value
    draft.leaves[number] = x
    return f"{value} in tensor {number}"


def _values(draft: Draft, dice: random.Random) -> str | None:
    """One value for all elements of a tensor."""
    number = _choose([n for n in draft.tensors() if draft.leaves[n].layout is torch.strided], dice)
    if number is None:
        return None
    x = draft.leaves[number].detach()
    usual = [0, -1, 2] if x.dtype is not torch.bool else [False, True]
    value = dice.choice([*usual, math.nan, math.inf] if x.is_floating_point() or x.is_complex() else usual)
    if x.dtype.itemsize == 1 and x.is_floating_point():  # float8 may have neither
        value = 2
    if x.dtype is torch.uint8 and value < 0:
        value = 255
    draft.leaves[number] = torch.full_like(x, value)
    return f"{value} in all of tensor {number}"


def _device(draft: Draft, dice: random.Random) -> str | None:
    """One of several tensors stays on the CPU."""
    tensors = draft.tensors()
    if len({id(draft.leaves[number]) for number in tensors}) < 2:
        return None
    draft.host = dice.choice(tensors)
    return f"tensor {draft.host} is on the CPU"


def _one_fewer(draft: Draft, dice: random.Random) -> str | None:
    """One argument is missing."""
    args, kwargs = tree_unflatten(draft.leaves, draft.structure)
    if len(args) < 2 and not kwargs:
        return None
    if kwargs and (len(args) < 2 or dice.random() < 0.5):
        words = dice.choice(sorted(set(kwargs) - {"device"}) or ["device"])
        del kwargs[words]
    else:
        words = "the last"
        args.pop()
    draft.leaves, draft.structure = tree_flatten((args, kwargs))
    return f"without {words}"


def _choose(places: Sequence[int], dice: random.Random) -> int | None:
    return dice.choice(places) if places else None


#: name → how often it is drawn beside the others, and the change
_CHANGES: dict[str, tuple[int, Change]] = {
    "dtype": (4, _dtype_of_one),
    "dtypes": (3, _dtype_of_all),
    "sizes": (5, _sizes),
    "number": (5, _number),
    "kind": (1, _kind_of_argument),
    "word": (1, _word),
    "index": (3, _index),
    "values": (2, _values),
    "device": (2, _device),
    "fewer": (1, _one_fewer),
}
