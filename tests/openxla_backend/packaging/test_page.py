"""The page `docs/packages.md` does what it says."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[3] / "docs" / "packages.md"


def test_the_code_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (block,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    exec(compile(block, str(PAGE), "exec"), {})
    assert (tmp_path / "model.package").exists()
