"""Pictures of shardings."""

from __future__ import annotations

import contextlib
import io

import pytest
import torch

from lazy_runtime.torch_xla.distributed import spmd as xs
from lazy_runtime.torch_xla.distributed.spmd.debugging import visualize_sharding, visualize_tensor_sharding

PARTS = """
┌─────────┬─────────┐
│  CPU 0  │  CPU 2  │
├─────────┼─────────┤
│  CPU 1  │  CPU 3  │
└─────────┴─────────┘
""".strip()
ROWS = """
┌─────────┐
│ CPU 0,1 │
├─────────┤
│ CPU 2,3 │
└─────────┘
""".strip()
WHOLE = """
┌─────────────┐
│ CPU 0,1,2,3 │
└─────────────┘
""".strip()


def pictures() -> None:
    mesh = xs.Mesh(range(4), (2, 2))
    for spec, picture in (((1, 0), PARTS), ((0, None), ROWS), (None, WHOLE)):
        x = torch.zeros(4, 4, device="xla")
        if spec is not None:
            xs.mark_sharding(x, mesh, spec)
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            assert visualize_tensor_sharding(x, use_color=False) == picture
        assert printed.getvalue() == picture + "\n"
    row = visualize_sharding("{devices=[4]0,1,2,3}", min_width=5)
    assert row.splitlines()[1] == "│ CPU 0 │ CPU 1 │ CPU 2 │ CPU 3 │"
    assert visualize_sharding("{replicated}") == WHOLE
    narrow = visualize_sharding("{devices=[1,4]0,1,2,3}", max_width=17)
    assert {len(line) for line in narrow.splitlines()} == {17}
    with pytest.raises(ValueError, match="one or two dimensions can be drawn"):
        visualize_tensor_sharding(xs.mark_sharding(torch.zeros(2, 2, 2, device="xla"), mesh, (0, 1, None)))
    with pytest.raises(ValueError, match="expected a sharding such as"):
        visualize_sharding("half")


def test_pictures(spmd):
    spmd(pictures)
