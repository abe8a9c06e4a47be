"""The graph of this project's imports, those inside of functions among them."""

from __future__ import annotations

import graphlib
from collections import Counter
from pathlib import Path

import grimp
import pytest


@pytest.fixture(scope="module")
def graph():
    return grimp.build_graph("lazy_runtime", "openxla_backend", exclude_type_checking_imports=True)


def test_no_module_imports_itself_over_others(graph):
    imported = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    graphlib.TopologicalSorter(imported).prepare()  # raises with the circle


def test_the_device_does_not_know_the_compiler_backend(graph):
    assert not graph.find_shortest_chains("lazy_runtime", "openxla_backend")


def test_no_folder_is_crowded():
    """A reader sees at once what a folder has: at most 25 files of Python."""
    root = Path(__file__).parents[1]
    names = ("lazy_runtime", "openxla_backend", "benchmarks", "tests")
    counts = Counter(file.parent for name in names for file in (root / name).rglob("*.py"))
    assert {str(folder.relative_to(root)): count for folder, count in counts.items() if count > 25} == {}
