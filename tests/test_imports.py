"""The graph of this project's imports, those inside of functions among them."""

from __future__ import annotations

import graphlib

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
