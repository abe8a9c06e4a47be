"""What a row says of a private name, and how the name is found.

A module of the room has a table of rows and imports no private name. `from ..compat.torch import DispatchKey` finds the
name when it is asked for. So a name that a version lacks costs only those who ask for it, and a module of torch or jax
is not imported for names that nobody wants. The importer gets torch's own object: a use costs nothing more.
"""

from __future__ import annotations

import operator
import pkgutil
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

#: The versions that this package supports (`setup.cfg`), oldest first.
SUPPORTED = {
    "torch": ("2.11", "2.12", "2.13", "2.14", "2.15"),
    "jax": ("0.10", "0.11", "0.12"),
    "jaxlib": ("0.10", "0.11", "0.12"),
}

XLA = "the xla device"
BACKEND = "the backend `openxla`"
NOTHING = "nothing"


class Row(NamedTuple):
    """A private name.

    Attributes:
        path: the module and the name in it, `torch._C:DispatchKey`; a module alone, `torch.utils._pytree`.
        why: what needs it.
        lost: what a version without it loses.
        plain: what importers call it; by default the last part of the path without its leading underscores.
        example: the path of an object that has the attribute, or of its class and `()`. The importer then gets a
            function that reads the attribute of any such object.
        is_exchanged: whether the package puts a function of its own there. The importer then gets a `Place`.
        since: the first supported version that has the name; None for the oldest.
        until: the first supported version without it; None for none.
        needed_by: what does not start without the name: `XLA`, `BACKEND`, or `NOTHING` of both. Then the package looks
            for the name where it uses it, or allows for its absence.
    """

    path: str
    why: str
    lost: str
    plain: str | None = None
    example: str | None = None
    is_exchanged: bool = False
    since: str | None = None
    until: str | None = None
    needed_by: str = NOTHING

    @property
    def name(self) -> str:
        """The private name with dots alone."""
        return self.path.replace(":", ".")

    @property
    def exported(self) -> str:
        """The plain name, by which importers ask."""
        return self.plain or re.split("[.:]", self.path)[-1].lstrip("_")

    @property
    def library(self) -> str:
        """The package that has the name."""
        return re.split("[.:]", self.path)[0]

    def versions(self) -> tuple[str, ...]:
        """The supported versions of the library that have the name."""
        known = SUPPORTED[self.library]
        first = known.index(self.since) if self.since else 0
        end = known.index(self.until) if self.until else len(known)
        return known[first:end]

    def is_due(self, version: str) -> bool:
        """Whether a version of the library is said to have the name.

        Args:
            version: as the library says it, `2.13.0+cpu`.
        """
        return ".".join(version.split(".")[:2]) in self.versions()

    def holds(self) -> bool:
        """Whether the installed version has the name."""
        try:
            if self.example is None:
                pkgutil.resolve_name(self.path)
                return True
            example = pkgutil.resolve_name(self.example.removesuffix("()"))
            return hasattr(example() if self.example.endswith("()") else example, _last(self.path))
        except (ImportError, AttributeError):
            return False

    def find(self) -> Any:
        """What importers get.

        Raises:
            ImportError: the installed version lacks the name.
        """
        if self.is_exchanged:
            return Place(self.path)
        if self.example is not None:
            return operator.attrgetter(_last(self.path))
        try:
            return pkgutil.resolve_name(self.path)
        except (ImportError, AttributeError) as error:
            raise ImportError(
                f"the installed {self.library} has no {self.name}: {self.why}. Without it is lost: {self.lost}. "
                f"{self.library} {', '.join(self.versions())} have it"
            ) from error


class Place(NamedTuple):
    """Where the package puts a function of its own into torch.

    Attributes:
        path: the module and the name in it, `torch._dynamo.output_graph:OutputGraph.add_output_instructions`.
    """

    path: str

    @property
    def name(self) -> str:
        """The owner and the attribute, for messages."""
        return ".".join(re.split("[.:]", self.path)[-2:])

    def is_there(self) -> bool:
        """Whether the installed version has something in the place."""
        try:
            self.get()
        except (ImportError, AttributeError):
            return False
        return True

    def get(self) -> Any:
        """What is there now: torch's own, or what others have put there.

        Raises:
            ImportError, AttributeError: the installed version has no such place.
        """
        return pkgutil.resolve_name(self.path)

    def set(self, function: Any) -> None:
        """Puts `function` there.

        Raises:
            ImportError, AttributeError: the installed version has no such owner.
        """
        owner, attribute = re.fullmatch(r"(.*)[.:](\w+)", self.path).groups()  # type: ignore[union-attr]
        setattr(pkgutil.resolve_name(owner), attribute, function)


def group(why: str, lost: str, *paths: str, **others: Any) -> tuple[Row, ...]:
    """Rows that differ in their names alone.

    Args:
        why: see `Row`.
        lost: see `Row`.
        paths: one for each row. ` as ` sets off the plain name, as in an import.
        others: fields of each row.
    """
    split = (path.partition(" as ") for path in paths)
    return tuple(Row(path, why, lost, plain or None, **others) for path, _, plain in split)


def attributes(owner: str, example: str, why: str, lost: str, *names: str) -> tuple[Row, ...]:
    """Rows of attributes that importers read with a function: `schema_of(overload)`.

    A method that subclasses override is one too: a function taken from the class would be the wrong one.

    Args:
        owner: the path of the class, `torch._ops:OpOverload`.
        example: the path of one of its instances.
        why: see `Row`.
        lost: see `Row`.
        names: an attribute and, after ` as `, the name of the function.
    """
    split = (name.partition(" as ") for name in names)
    return tuple(Row(f"{owner}.{name}", why, lost, plain, example) for name, _, plain in split)


def needed_by(
    what: str, rows: tuple[Row, ...], exceptions: Mapping[str, Iterable[str]] | None = None
) -> tuple[Row, ...]:
    """A table whose rows say what needs them.

    Args:
        what: what most need, see `Row`.
        rows: the table.
        exceptions: the plain names of those that are needed by something else.

    Raises:
        ValueError: an exception is no row.
    """
    others = {name: by for by, names in (exceptions or {}).items() for name in names}
    if missing := others.keys() - {row.exported for row in rows}:
        raise ValueError(f"no row has the plain name {', '.join(sorted(missing))}")
    return tuple(row._replace(needed_by=others.get(row.exported, what)) for row in rows)


def finder(module: dict[str, Any], rows: tuple[Row, ...]) -> Callable[[str], Any]:
    """A module's `__getattr__`, which finds what rows name.

    Args:
        module: the module's `globals()`, which keep what has been found.
        rows: its table.
    """
    table: Mapping[str, Row] = {row.exported: row for row in rows}
    if len(table) != len(rows):
        raise ValueError(f"{module['__name__']}: two rows have one plain name")

    def find(name: str) -> Any:
        if name not in table:
            raise AttributeError(f"module {module['__name__']!r} has no attribute {name!r}")
        found = module[name] = table[name].find()
        return found

    return find


def _last(path: str) -> str:
    return re.split("[.:]", path)[-1]
