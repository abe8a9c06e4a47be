"""The page on jax says what is so."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[3] / "docs" / "jax.md"


def test_its_code_runs(capsys):
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) == 3
    names: dict[str, object] = {}
    for block in blocks:
        exec(block, names)
    assert names["z"].tolist() == [-4, -2, 0, 2, 4]  # type: ignore[attr-defined]
    assert len(capsys.readouterr().out.splitlines()) == 3
