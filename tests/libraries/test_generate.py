"""`generate()` of transformers: the tokens of the CPU, and what each length costs."""

from __future__ import annotations

import pytest

from tests.libraries.running import needs, on_cpu, on_xla

pytestmark = [needs("transformers"), pytest.mark.long]


#: New tokens of each of the program's two calls.
TOKENS = 12


@pytest.mark.parametrize("cache", ["dynamic", "static", "padded", "compiled"])
def test_generate(cache, tmp_path):
    """A second prompt of the same length compiles nothing. With a static cache, all tokens but the first are one
    program's, and what asks whether the prompt has a mask and whether all have ended are some small ones.
    """
    cpu = on_cpu("generate.py", "cpu", "static" if cache == "compiled" else cache, folder=tmp_path)
    xla = on_xla("generate.py", "xla", cache, folder=tmp_path)
    assert xla.found == cpu
    assert xla.compiles[0] == xla.compiles[1] > 0
    advised = "each length is a program of its own" in xla.printed
    assert advised == (cache == "dynamic")
    if cache in ("static", "padded"):
        assert xla.compiles[0] <= 8
        assert xla.executions[1] - xla.executions[0] <= TOKENS + 6
