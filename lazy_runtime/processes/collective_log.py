"""The collectives of this process, in order: `collective_checker.py` compares them with other ranks'."""

from __future__ import annotations

import time
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ..common import source_locations
from ..compat.torch import schema_of
from ..ir.spec import TensorSpec

if TYPE_CHECKING:
    from ..ir.graph import Call, Graph


class Collective(NamedTuple):
    """One collective of a program.

    Attributes:
        call: its number in the program.
        text: what it does, the same on all ranks.
        line: the user's line, where the call is a whole graph; else each execution has its own.
    """

    call: int
    text: str
    line: str


class Program:
    """What a program has of collectives.

    Args:
        collectives: in their order.
        ranks: those that run it together.
    """

    def __init__(self, collectives: Iterable[Collective], ranks: Iterable[int]):
        self.collectives = tuple(collectives)
        self.ranks = tuple(ranks)


def of(graph: Graph, ranks: Iterable[int], rank: int) -> tuple[Program, ...]:
    """The collectives of a graph: a program for each group of ranks that does some of them.

    Args:
        ranks: those that run it together.
        rank: this one.
    """
    everybody = tuple(ranks)
    found: dict[tuple[int, ...], list[Collective]] = {}
    for call, each in _collectives(graph):
        found.setdefault(_group(call, everybody, rank), []).append(each)
    return tuple(Program(collectives, group) for group, collectives in found.items())


def _collectives(graph: Graph) -> Iterator[tuple[Call, Collective]]:
    for number, call in enumerate(graph.calls):
        if not call.collective:
            continue
        if call.nested is None:
            yield call, Collective(number, described(call), "")
        else:
            for inner, each in enumerate(call.nested.graph.calls):
                if each.collective:
                    yield each, Collective(number, described(each), call.nested.lines.get(inner, ""))


def _group(call: Call, everybody: tuple[int, ...], rank: int) -> tuple[int, ...]:
    """The ranks that meet in a collective."""
    arguments = dict(_arguments(call))
    if "source" in arguments:  # a message
        return tuple(sorted((arguments["source"], arguments["target"])))
    members = arguments.get("members")
    if not members:
        return everybody
    size = arguments.get("size", len(members))
    start = members.index(rank) // size * size
    return tuple(sorted(members[start : start + size]))


def _arguments(call: Call) -> Iterator[tuple[str, Any]]:
    """Names and values of a call's arguments; what has no name in the schema comes with an empty one."""
    if call.meaning is None:
        return
    operator, key = call.meaning
    names = [argument.name for argument in schema_of(operator.overload).arguments]
    yield from zip([*names, *[""] * (len(key) - len(names))], key, strict=False)


#: Each rank has its own of these: what it exchanges with each other one.
_OWN = {"all_to_all_parts": ("tensor", "output_sizes", "input_sizes", "place")}


def described(call: Call) -> str:
    """`all_reduce(tensors=[float32[4], float32[2, 3]], kind='sum', scale=0.5, members=[], size=2)`."""
    name = call.name.rpartition("::")[2]
    arguments = [
        f"{argument}={_text(each)}" if argument else _text(each)
        for argument, each in _arguments(call)
        if argument not in _OWN.get(name, ())
    ]
    return f"{name}({', '.join(arguments)})" if call.meaning is not None else call.name


def _text(part: Any) -> str:
    if isinstance(part, TensorSpec):
        return f"{str(part.dtype).removeprefix('torch.')}{list(part.shape)}"
    if isinstance(part, tuple):
        return f"[{', '.join(map(_text, part))}]"
    if isinstance(part, str) and "0x" in part and "p" in part:  # a float, as keys have them
        return repr(float.fromhex(part))
    return repr(part)


class Entry:
    """One execution with collectives.

    Attributes:
        position: how many collectives the same ranks have come to before.
        program: what is executed.
        lines: call number → the user's line.
        began: when, by `time.monotonic`.
    """

    __slots__ = ("_marker", "began", "lines", "position", "program")

    def __init__(self, position: int, program: Program, users: Mapping[int, str]):
        self.position = position
        self.program = program
        self.lines = users
        self.began = time.monotonic()
        self._marker: Any = None

    def started(self, result: Any) -> None:
        """Notes one of its results, by which is known when it has been executed; None if it has failed."""
        self._marker = _no_result if result is None else weakref.ref(result)

    @property
    def is_done(self) -> bool:
        """It has been executed, or nobody can tell any more: its result is gone."""
        if self._marker is None:
            return False
        result = self._marker()
        return result is None or result.is_deleted() or result.is_ready()

    def __str__(self) -> str:
        """Its first collective, and how many more there are."""
        return shown(self.described())

    def described(self) -> list[tuple[str, str]]:
        """Each collective, and the user's line."""
        return [(each.text, each.line or self.lines.get(each.call, "")) for each in self.program.collectives]


def shown(described: Sequence[Sequence[str]]) -> str:
    """Collectives (`Entry.described`) for people, on one line of a few hundred characters at most."""
    text, line = described[0]
    if len(text) > 300:
        text = f"{text[:140]} ... {text[-140:]}"
    found = source_locations.parse(line)
    rest = f" and {len(described) - 1} more of its program" if len(described) > 1 else ""
    return f"{text} at {found}{rest}" if found is not None else f"{text}{rest}"


def _no_result() -> None:
    return None


class Log:
    """The latest executions with collectives among the same ranks.

    Attributes:
        position: how many collectives have been come to.
        before: what the latest execution executed.
    """

    #: how many executions are kept
    LENGTH = 1024

    def __init__(self) -> None:
        self.position = 0
        self.before: Program | None = None
        self.entries: deque[Entry] = deque(maxlen=self.LENGTH)

    def add(self, program: Program, users: Mapping[int, str]) -> Entry:
        """Notes that an execution is about to be started.

        Args:
            users: call number → the user's line.
        """
        entry = Entry(self.position, program, users)
        self.entries.append(entry)
        self.position += len(program.collectives)
        self.before = program
        return entry

    def since(self, position: int, count: int) -> list[tuple[str, str]] | None:
        """So many collectives from the one at `position` on, as far as they have been come to; None where they are too
        long ago to be known.
        """
        if position >= self.position:
            return []
        found: list[tuple[str, str]] = []
        for entry in list(self.entries):
            described = entry.described()
            if entry.position + len(described) <= position:
                continue
            if not found and entry.position > position:
                return None
            found += described[max(position - entry.position, 0) :]
        return found[:count]

    def unfinished(self) -> Entry | None:
        """The first execution that has not been executed."""
        return next((entry for entry in list(self.entries) if not entry.is_done), None)
