"""Private names of torch, jax and jaxlib stand in `lazy_runtime/compat/` alone.

What counts, by the source's syntax:

- an import of a module, or of a name in one, with a part that begins with an underscore; anything of jaxlib, which
  documents nothing;
- such a name after a dot, where what stands before the dot is a module or a class of these packages, under any alias;
- a private attribute of any other object than `self` and `cls`, if no code here defines an attribute of that name, or
  if a row of `compat` names it;
- the same in the arguments of `getattr` and its like, and a string that is a private name of a row.

Operators (`torch.ops.aten._softmax`) do not count: their names are what programs are made of. Neither do attributes
without an underscore that objects of private classes have, which no syntax tells from others.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

from lazy_runtime.compat import versions_page

ROOT = Path(__file__).parents[1]
COMPAT = ROOT / "lazy_runtime/compat"
PACKAGES = ("torch", "jax", "jaxlib")

#: Files elsewhere that name something private, and why they do.
ALLOWED = {
    "benchmarks/measurements/coldstart.py": "a backend that does nothing but AOTAutograd's part, for a comparison "
    "without ours",
    "benchmarks/modes.py": "the settings of inductor, with which ours is compared",
    "benchmarks/worker.py": "the limits and caches of torch's own compiler, which benchmarks set; a worker also runs "
    "beside earlier commits, which have no `compat`",
    "lazy_runtime/dispatcher/storage.py": "its class overrides `UntypedStorage._set_from_file`",
    "lazy_runtime/torch_xla/__init__.py": "a package of PyTorch/XLA's is called `_internal` too",
    "lazy_runtime/torch_xla/distributed/fully_sharded.py": "methods that it puts into FSDP's classes read and write "
    "their attributes",
}


def _is_private(name: str) -> bool:
    return name.startswith("_") and not (name.startswith("__") and name.endswith("__"))


def _names_private(path: str) -> bool:
    """Whether a dotted path leads to something private."""
    parts = path.split(".")
    if parts[0] not in PACKAGES or parts[:2] == ["torch", "ops"]:
        return False
    return (parts[0] == "jaxlib" and len(parts) > 1) or any(map(_is_private, parts))


_READERS = ("getattr", "hasattr", "setattr", "delattr", "attrgetter", "import_module", "resolve_name")

#: Private attributes and names of rows.
_OF_ROWS = frozenset(
    part for rows in versions_page.TABLES.values() for row in rows if _is_private(part := row.name.split(".")[-1])
)


def _files() -> list[Path]:
    return [p for package in ("lazy_runtime", "openxla_backend", "benchmarks") for p in (ROOT / package).rglob("*.py")]


@functools.cache
def _tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text())


@functools.cache
def _defined_here() -> frozenset[str]:
    """Names that code of this repository defines, and so may use of any object."""
    found: set[str] = set()
    for node in (node for file in _files() for node in ast.walk(_tree(file))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _is_own(node.value):
            found.add(node.attr)
    return frozenset(found - _OF_ROWS)


#: Of Python's standard library.
_PYTHONS = frozenset(
    {"_ArgumentGroup", "_DummyThread", "_asdict", "_current_frames", "_data", "_exit", "_fields", "_getframe"}
    | {"_replace", "_run_module_as_main"}
)


def _is_own(value: ast.expr) -> bool:
    return isinstance(value, ast.Name) and value.id in ("self", "cls")


class _Scan:
    """Finds the private names in a file."""

    def __init__(self, tree: ast.Module):
        self.tree = tree
        self.known: dict[str, str] = {}  # local name: what it stands for
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    self.known[alias.asname or alias.name.split(".")[0]] = (
                        alias.name if alias.asname else alias.name.split(".")[0]
                    )
            elif isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    self.known[alias.asname or alias.name] = f"{'.' * node.level}{node.module}.{alias.name}"
        for node in ast.walk(tree):
            target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
            if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(target, ast.Name) and node.value is not None:
                path = self.path(node.value)
                if path is not None and path.split(".")[0] in PACKAGES:
                    self.known.setdefault(target.id, path)

    def path(self, node: ast.expr) -> str | None:
        """The dotted path that an expression stands for, if it is one."""
        if isinstance(node, ast.Name):
            return self.known.get(node.id)
        if isinstance(node, ast.Attribute):
            base = self.path(node.value)
            return None if base is None else f"{base}.{node.attr}"
        return None

    def found(self) -> Iterator[str]:
        """What stands there, with its line."""
        for node in ast.walk(self.tree):
            for name in self.of(node):
                yield f"{getattr(node, 'lineno', 0)}: {name}"

    def of(self, node: ast.AST) -> Iterator[str]:
        """The private names that a node itself has."""
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if _names_private(alias.name))
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield from (path for a in node.names if _names_private(path := f"{node.module}.{a.name}"))
        elif isinstance(node, ast.Attribute):
            path = self.path(node)
            if path is not None and path.split(".")[0] in PACKAGES:
                yield from [path] if _names_private(path) else []
            elif _is_private(node.attr) and self.is_foreign(node):
                yield ast.unparse(node)
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and node.value in _OF_ROWS - self.known.keys()
        ):
            yield repr(node.value)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in _READERS:
            yield from self.read_by_text(node)

    def is_foreign(self, node: ast.Attribute) -> bool:
        """Whether a private attribute is none of ours or of Python's own."""
        if isinstance(node.value, ast.Call) and ast.unparse(node.value) == "super()":
            return node.attr.removeprefix("_") in ("set_from_file",)
        return not _is_own(node.value) and node.attr not in _defined_here() | _PYTHONS

    def read_by_text(self, call: ast.Call) -> Iterator[str]:
        """The private names among the arguments of `getattr` and its like."""
        owner = self.path(call.args[0]) or ""
        for argument in call.args:
            text = argument.values[0] if isinstance(argument, ast.JoinedStr) else argument
            if not isinstance(text, ast.Constant) or not isinstance(text.value, str):
                continue
            if owner.startswith("torch.ops"):
                continue
            if _names_private(text.value) or (_is_private(text.value) and text.value not in _defined_here()):
                yield ast.unparse(call)


def test_no_other_file_names_something_private():
    found = {}
    for file in _files():
        if COMPAT not in file.parents:
            names = list(_Scan(_tree(file)).found())
            if names:
                found[str(file.relative_to(ROOT))] = names
    assert len(ALLOWED) <= 12
    refused = {file: names for file, names in found.items() if file not in ALLOWED}
    assert refused == {}, "these need rows in lazy_runtime/compat (CONTRIBUTING.md, Using a private name)"
    assert sorted(found) == sorted(ALLOWED), "a file that names nothing private any more is to be taken off the list"


def test_each_way_to_a_private_name_is_seen():
    for code in (
        "import torch._dynamo",
        "import jaxlib.mlir.ir as ir",
        "from jaxlib import lapack",
        "from jax._src import core",
        "from torch.utils import _pytree",
        "import torch\ntorch._C.DispatchKey",
        "import torch\nmine: Any = torch\nmine._sync(x)",
        "import torch\nf = torch.Tensor\nf._make_subclass",
        "x._op_dk(1)",
        "getattr(x, '_dynamo_source', None)",
        "import importlib\nimportlib.import_module('torch._guards')",
        "import importlib\nimportlib.import_module(f'torch._higher_order_ops.{x}')",
        "name == '_init_group'",
    ):
        assert list(_Scan(ast.parse(code)).found()), code
    for code in ("import torch\ntorch.ops.aten._softmax", "self._mine", "from ..compat.torch import DispatchKey"):
        assert not list(_Scan(ast.parse(code)).found()), code


def test_every_row_is_asked_for():
    asked = set()
    for file in _files():
        for node in ast.walk(_tree(file)):
            if isinstance(node, ast.ImportFrom) and "compat" in (node.module or ""):
                asked |= {alias.name for alias in node.names}
            elif isinstance(node, ast.Attribute):
                asked.add(node.attr)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and COMPAT not in file.parents:
                asked.add(node.value)
    rows = {row.exported for rows in versions_page.TABLES.values() for row in rows}
    assert rows <= asked | {"allow_rnn", "trace_autograd_ops"}, "settings: what asks for `config` sets them"
