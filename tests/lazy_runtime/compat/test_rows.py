"""The installed versions of torch and jax have every private name that the rows say they have."""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
from pathlib import Path

import pytest

from lazy_runtime.compat import rows, versions_page
from lazy_runtime.compat.rows import Place, Row

ROOT = Path(__file__).parents[3]
ROWS = [row for table in versions_page.TABLES.values() for row in table]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_the_installed_version_has_the_name(row):
    assert row.holds() == row.is_due(importlib.metadata.version(row.library))
    if row.holds():
        found = row.find()
        assert not isinstance(found, Place) or found.is_there()


def test_the_page_is_made_of_the_rows():
    assert (ROOT / "docs/versions.md").read_text() == versions_page.markdown(), (
        "run `python -m lazy_runtime.compat > docs/versions.md`"
    )


def test_the_versions_are_those_that_are_installed_with():
    required = (ROOT / "setup.cfg").read_text()
    for library, versions in rows.SUPPORTED.items():
        major, minor = versions[-1].split(".")
        assert f"{library}>={versions[0]},<{major}.{int(minor) + 1}" in required


def test_versions_that_have_a_name():
    row = Row("torch:_there", "", "", since="2.12", until="2.14")
    assert row.versions() == ("2.12", "2.13")
    assert row.is_due("2.13.0+cpu")
    assert not row.is_due("2.11.0")
    assert not row.is_due("2.14.1")


def test_a_missing_name_says_what_it_is_for():
    find = rows.finder({"__name__": "table"}, (Row("torch._C:_nothing", "some need it", "something"),))
    with pytest.raises(ImportError, match=r"no torch\._C\._nothing: some need it\. Without it is lost: something"):
        find("nothing")
    with pytest.raises(AttributeError, match="has no attribute 'others'"):
        find("others")


def test_two_rows_have_two_names():
    with pytest.raises(ValueError, match="one plain name"):
        rows.finder({"__name__": "table"}, rows.group("", "", "torch:_same", "torch._C:_same"))


def test_what_type_checkers_see_is_what_rows_name():
    for file in (ROOT / "lazy_runtime/compat").glob("*.py"):
        for block in ast.parse(file.read_text()).body:
            if isinstance(block, ast.If):
                table = {row.exported: row.name for row in _rows_of(file.stem)}
                seen = [(node.module, alias) for node in block.body for alias in node.names]
                for module, alias in seen:
                    assert table[alias.asname or alias.name] == f"{module}.{alias.name}"


def _rows_of(module: str) -> tuple[Row, ...]:
    return importlib.import_module(f"lazy_runtime.compat.{module}").ROWS


def test_without_any_private_name_torch_is_left_alone(fresh_process):
    code = """
        import pkgutil, sys
        find = pkgutil.resolve_name
        def nothing(path):
            if path.split(":")[0].split(".")[0] in ("torch", "jax", "jaxlib"):
                raise AttributeError(path)
            return find(path)
        pkgutil.resolve_name = nothing
        sys.stderr = sys.stdout
        import torch
        x = torch.ones(2)
        assert torch.compile(lambda x: x.sin() + 1, backend="eager")(x).tolist() == (x.sin() + 1).tolist()
        assert "jax" not in sys.modules
        try:
            torch.ones(2, device="xla")
        except RuntimeError:
            print("no xla")
        """
    told = fresh_process(code).splitlines()
    assert told[0].startswith("lazy_runtime could not set up the xla device: ImportError: the installed torch has no ")
    assert any(line.startswith("backend='openxla' could not be registered: ImportError: ") for line in told)
    assert told[-1] == "no xla"


def test_the_rooms_modules_import_neither_jax_nor_dynamo(fresh_process):
    fresh_process(
        """
        import sys, torch
        from lazy_runtime.compat import versions_page
        assert not {"jax", "jaxlib", "torch._dynamo"} & set(sys.modules)
        """
    )


def test_what_needs_a_name(fresh_process):
    """A row that says that nothing needs it may be looked for, if the package allows for its absence."""
    fresh_process(
        """
        import torch
        from lazy_runtime.compat import distributed, dynamo, jaxlib, torch as core, tracing
        from lazy_runtime.compat.rows import BACKEND, XLA

        allowed = {row.exported for row in tracing.FLEX_ATTENTION + tracing.CONTROL_FLOW}

        def check(*needed):
            for table in (core, tracing, dynamo, distributed, jaxlib):
                for row in table.ROWS:
                    if row.needed_by in needed:
                        assert row.exported in vars(table), row
                    elif row.exported in vars(table) and not row.is_exchanged:
                        assert row.exported in allowed, row

        torch.ones(2, device="xla")
        check(XLA)
        import openxla_backend.backend
        check(XLA, BACKEND)
        """
    )
