"""Why a program was compiled again: the difference between its graph and the nearest one that was there before."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

from ..common.source_locations import Line
from ..ir.graph import Call, Graph
from .arguments import PRECISION, describe, named
from .formats import counted, duration


class Seen(NamedTuple):
    """A graph that was compiled, and where its parts come from.

    Attributes:
        lines: for each call, the user's line that recorded it, where it is known.
        leaf_lines: for each leaf, the user's line that made it, where it is known.
    """

    graph: Graph
    lines: Sequence[Line | None]
    leaf_lines: Sequence[Line | None]


class Recompilation(NamedTuple):
    """A compile after the first of its region.

    Attributes:
        region: the line that executes the program, or the function that was given to torch.compile: `train.py:41`.
        number: it is the region's compile of this number, from 1.
        seconds: what it took; 0 where the program came from the cache on disk.
        cause: a word for counting: see `CAUSES`.
        reason: what differs from the nearest graph of the region.
        line: the user's line behind that, where it is known.
        advice: how to avoid it, or empty.
        backend: "lazy", "eager" or "openxla".
    """

    region: str
    number: int
    seconds: float
    cause: str
    reason: str
    line: Line | None
    advice: str
    backend: str

    def __str__(self) -> str:
        """`compile #7 of train.py:41 (1.3 s): input 0 was f32[64,3], is f32[37,3] (train.py:38)`."""
        text = f"compile #{self.number} of {self.region} ({duration(self.seconds)}): {self.reason}"
        if self.line is not None:
            text += f" ({self.line})"
        return f"{text}; {self.advice}" if self.advice else text


CAUSES = {
    "input_shape": "an input has another shape",
    "input_dtype": "an input has another dtype",
    "input_strides": "an input has other strides",
    "argument": "an argument that is part of the code changed: a number, sizes, a dtype",
    "operators": "operators were added, taken out or exchanged",
    "operands": "the same operators take other values",
    "outputs": "other results are kept",
    "donation": "other buffers may be reused",
    "layout": "an input's memory has another order of dimensions",
    "device": "another device",
    "options": "other options of the compiler, or of the precision of float32 products",
}


class Difference(NamedTuple):
    """See `Recompilation`."""

    cause: str
    reason: str
    line: Line | None = None
    advice: str = ""


def nearest(new: Graph, known: Sequence[Seen]) -> Seen:
    """The graph that differs least; of equals, the latest."""
    names = _names(new)
    return min(reversed(known), key=lambda seen: _distance(seen.graph, new, names))


def _distance(old: Graph, new: Graph, names: Sequence[str]) -> tuple[bool, int, int]:
    if old.device is not new.device:
        return True, 0, 0
    before = _names(old)
    first, last = _common(before, names)
    operators = len(before) + len(names) - 2 * (first + last)
    inputs = abs(len(old.leaves) - len(new.leaves)) + sum(
        a is not b for a, b in zip(old.leaves, new.leaves, strict=False)
    )
    if operators == 0 and inputs == 0:
        inputs = sum(a is not b for a, b in zip(old.calls, new.calls, strict=True))
    return False, operators, inputs


def _names(graph: Graph) -> list[str]:
    return [call.name for call in graph.calls]


def _common(a: Sequence[Hashable], b: Sequence[Hashable]) -> tuple[int, int]:
    """Lengths of the common beginning and of the common end, which do not overlap."""
    shorter = min(len(a), len(b))
    first = next((i for i in range(shorter) if a[i] != b[i]), shorter)
    last = next((i for i in range(shorter - first) if a[-1 - i] != b[-1 - i]), shorter - first)
    return first, last


def explain(old: Seen, new: Seen) -> Difference:
    """What made the new graph another one. Where several things differ, the one that others follow from."""
    before, after = old.graph, new.graph
    if before.device is not after.device:
        return Difference("device", f"it runs on {after.device.torch_device}, not on {before.device.torch_device}")
    if _names(before) != _names(after):
        return _operators(old, new)
    for part in (_inputs, _arguments):
        found = part(old, new)
        if found is not None:
            return found
    if before.operands != after.operands or len(before.leaves) != len(after.leaves):
        return _operands(old, new)
    if before.outputs != after.outputs:
        return _outputs(old, new)
    if before.channels_last != after.channels_last:
        changed = min(set(before.channels_last) ^ set(after.channels_last))
        order = "channels last" if changed in after.channels_last else "in torch's order"
        return Difference("layout", f"the memory of input {changed} is {order} now", new.leaf_lines[changed])
    if before.donated != after.donated:
        changed = min(set(before.donated) ^ set(after.donated))
        now = "may be reused now" if changed in after.donated else "is still needed by a tensor now"
        return Difference("donation", f"the buffer of input {changed} {now}", new.leaf_lines[changed])
    if before.shared != after.shared:
        return Difference("argument", "numbers of the same operator that were equal differ now, or became equal")
    return Difference("options", "other options of the compiler")


def _inputs(old: Seen, new: Seen) -> Difference | None:
    before, after = old.graph.leaves, new.graph.leaves
    if len(before) != len(after):
        return None
    changed = [n for n, (a, b) in enumerate(zip(before, after, strict=True)) if a is not b]
    if not changed:
        return None
    shapes = [n for n in changed if before[n].shape != after[n].shape]
    dtypes = [n for n in changed if before[n].dtype != after[n].dtype]
    cause = "input_shape" if shapes else "input_dtype" if dtypes else "input_strides"
    # what comes from outside explains what was computed from it
    known = [n for n in shapes or dtypes or changed if new.leaf_lines[n] is not None]
    first = (known or shapes or dtypes or changed)[0]
    reason = f"input {first} was {describe(before[first])}, is {describe(after[first])}"
    others = len(changed) - 1
    if others:
        reason += f", and {counted(others, 'other input')} changed"
    advice = _padding([before[n].shape for n in shapes], [after[n].shape for n in shapes])
    return Difference(cause, reason, new.leaf_lines[first], advice)


def _padding(before: Sequence[tuple[int, ...]], after: Sequence[tuple[int, ...]]) -> str:
    """Advice where nothing but one size has changed, to the same everywhere."""
    changes = set()
    for a, b in zip(before, after, strict=True):
        if len(a) != len(b):
            return ""
        changes.update((dim, x, y) for dim, (x, y) in enumerate(zip(a, b, strict=True)) if x != y)
    if len(changes) != 1:
        return ""
    ((dim, was, now),) = changes
    if dim == 0 and now < was:
        return (
            f"if it is the last batch, drop it (DataLoader(drop_last=True)) or pad it to {was} and leave the padding "
            "out of the loss"
        )
    return f"pad dimension {dim} to a few fixed sizes if it goes on changing"


def _operators(old: Seen, new: Seen) -> Difference:
    gone, added = _edits(_names(old.graph), _names(new.graph))
    lost, got = [old.graph.calls[n].name for n in gone], [new.graph.calls[n].name for n in added]
    # backward passes run on autograd's threads, where no operator has a line
    known = [line for line in (*(new.lines[n] for n in added), *(old.lines[n] for n in gone)) if line is not None]
    if not lost:
        reason = f"{_several(got)} {'was' if len(got) == 1 else 'were'} added"
    elif not got:
        reason = f"{_several(lost)} {'is' if len(lost) == 1 else 'are'} gone"
    else:
        reason = f"{_several(got)} in place of {_several(lost)}"
    return Difference(
        "operators", reason, known[0] if known else None, _FIRST_STEP if _FILLS.intersection(lost) else ""
    )


_FILLS = frozenset({"aten::zeros_like", "aten::full", "aten::full_like", "aten::zeros", "aten::ones_like"})
_FIRST_STEP = "expected once if this is the second step: the first one makes an optimizer's state"


# How far ahead the same operators are looked for, and how many of them in a row count as the same place.
_REACH, _RUN = 64, 8


def _edits(before: Sequence[str], after: Sequence[str]) -> tuple[list[int], list[int]]:
    """Which operators of one list are not in the other, at their places: numbers in the first, and in the second.

    One pass, since graphs have thousands of operators: past a difference it goes on where a run is the same again.
    """
    gone: list[int] = []
    added: list[int] = []
    first, last = _common(before, after)
    i, j, i_end, j_end = first, first, len(before) - last, len(after) - last
    while i < i_end and j < j_end:
        if before[i] == after[j]:
            i, j = i + 1, j + 1
            continue
        steps = ((step, reach - step) for reach in range(1, _REACH) for step in range(reach + 1))
        same = (s for s in steps if before[i + s[0] : i + s[0] + _RUN] == after[j + s[1] : j + s[1] + _RUN])
        left, right = next(same, (i_end - i, j_end - j))
        gone.extend(range(i, min(i + left, i_end)))
        added.extend(range(j, min(j + right, j_end)))
        i, j = i + left, j + right
    return [*gone, *range(i, i_end)], [*added, *range(j, j_end)]


def _several(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {counted(len(names) - 1, 'more operator')}"


def _arguments(old: Seen, new: Seen) -> Difference | None:
    for number, (a, b) in enumerate(zip(old.graph.calls, new.graph.calls, strict=True)):
        if a is not b:
            cause, reason = _argument(a, b)
            return Difference(cause, reason, new.lines[number])
    return None


def _argument(a: Call, b: Call) -> tuple[str, str]:
    if a.nested is not None and b.nested is not None:
        found = explain(_bare(a.nested.graph), _bare(b.nested.graph))
        return found.cause, f"in the compiled function: {found.reason}"
    before, after = named(a), named(b)
    for name in {**after, **before}:
        was, now = before.get(name, "its default"), after.get(name, "its default")
        if was == now:
            continue
        if name == PRECISION:
            return "options", f"the precision of float32 products was {was}, is {now}"
        return "argument", f"argument {name} of {b.name} was {was}, is {now}"
    for number, (was, now) in enumerate(zip(a.inputs, b.inputs, strict=False)):
        if was is not now:
            return "operands", f"operand {number} of {b.name} was {describe(was)}, is {describe(now)}"
    return "argument", f"an argument of {b.name} changed"


def _bare(graph: Graph) -> Seen:
    """A graph that is a part of another one, whose lines are not kept."""
    return Seen(graph, [None] * len(graph.calls), [None] * len(graph.leaves))


def _operands(old: Seen, new: Seen) -> Difference:
    next_operand = 0
    for number, call in enumerate(new.graph.calls):
        end = next_operand + len(call.inputs)
        if old.graph.operands[next_operand:end] != new.graph.operands[next_operand:end]:
            return Difference("operands", f"{call.name} takes other values", new.lines[number])
        next_operand = end
    return Difference("operands", "the same operators take other values")


def _outputs(old: Seen, new: Seen) -> Difference:
    added = sorted(set(new.graph.outputs) - set(old.graph.outputs))
    gone = sorted(set(old.graph.outputs) - set(new.graph.outputs))
    slots = [number for number, call in enumerate(new.graph.calls) for _ in call.outputs]
    if not added and not gone:
        return Difference("outputs", "the results are kept in another order")
    number = slots[(added or gone)[0]]
    what = "is kept by a tensor now" if added else "is kept by no tensor any more"
    reason = f"the result of {new.graph.calls[number].name} {what}"
    count = len(added) + len(gone)
    if count > 1:
        reason += f", and {counted(count - 1, 'other change')} of what is kept"
    return Difference("outputs", reason, new.lines[number])
