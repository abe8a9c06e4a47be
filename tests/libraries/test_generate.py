"""`generate()` of transformers: the tokens of the CPU, and what each length costs."""

from __future__ import annotations

import pytest

from tests.libraries.running import needs, on_cpu, on_xla

pytestmark = [needs("transformers"), pytest.mark.long]


@pytest.mark.parametrize("cache", ["dynamic", "static", "compiled"])
def test_generate(cache, tmp_path):
    """A second prompt of the same length compiles nothing. The model compiled by itself is no part of what grows."""
    cpu = on_cpu("generate.py", "cpu", "static" if cache == "compiled" else cache, folder=tmp_path)
    xla = on_xla("generate.py", "xla", cache, folder=tmp_path)
    assert xla.found == cpu
    assert xla.compiles[0] == xla.compiles[1] > 0
    advised = "each length is a program of its own" in xla.printed
    assert advised == (cache != "compiled")
