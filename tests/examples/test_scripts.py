"""Scripts written for PyTorch/XLA, run as they are by `python -m lazy_runtime`: its examples, and the code blocks of
its documentation on eager mode, Dynamo and performance. Each file says what was changed; the rest is PyTorch/XLA's.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

HERE = Path(__file__).parent / "pytorch_xla"

# Asked for without importing it, see START.
needs_torchvision = pytest.mark.skipif(find_spec("torchvision") is None, reason="torchvision is not installed")

# torchvision may have been built for another torch, and then needs a hand before it can be imported
START = """
import sys
if {torchvision}:
    from benchmarks.models.model import torchvision_models
    torchvision_models()
from lazy_runtime.command_line import main
sys.exit(main(sys.argv[1:]))
"""


def run(*arguments: object, torchvision: bool = False, devices: int | None = None) -> str:
    started = ["-c", START.format(torchvision=True)] if torchvision else ["-m", "lazy_runtime"]
    result = subprocess.run(
        [sys.executable, *started, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        cwd=HERE.parents[2],
        env={**os.environ, **({} if devices is None else {"CPU_NUM_DEVICES": str(devices)})},
        timeout=240,
    )
    assert result.returncode == 0, f"{result.stdout}\n{result.stderr}"
    return result.stdout


def losses(printed: str) -> list[float]:
    return [float(found) for found in re.findall(r"loss: ([\d.]+)", printed)]


@pytest.mark.parametrize(
    "script",
    [
        "train_decoder_only_base",
        "eager/train_decoder_only_eager",
        "eager/train_decoder_only_eager_with_compile",
    ],
)
def test_decoder_only(script):
    found = losses(run(HERE / f"{script}.py"))
    assert len(found) == 2
    assert found[1] < found[0]


def test_decoder_only_with_data_preparation():
    printed = run(HERE / "data_preparation" / "train_decoder_only_with_data_preparation.py")
    assert len(losses(printed)) == 2
    assert "compiles: None" in printed


@needs_torchvision
@pytest.mark.parametrize("script", ["train_resnet_base", "amp/train_resnet_amp"])
def test_resnet(script):
    (loss,) = losses(run(HERE / f"{script}.py", torchvision=True))
    assert 0 < loss < 20


@needs_torchvision
def test_resnet_profile():
    printed = run(HERE / "debug" / "train_resnet_profile.py", torchvision=True)
    assert int(re.findall(r"trace files: (\d+)", printed)[0]) > 0
    assert "Metric: ExecuteTime" in printed


@needs_torchvision
@pytest.mark.parametrize("page", ["eager_mode", "dynamo", "performance"])
def test_pages(page, tmp_path):
    """All blocks of a page in one process, to save time, each as a script of its own."""
    blocks = sorted((HERE / "pages" / page).glob("*.py"))
    assert blocks
    script = tmp_path / "page.py"
    script.write_text(
        "import runpy, torch_xla\n"
        f"for path in {list(map(str, blocks))}:\n"
        "    torch_xla.experimental.eager_mode(False)\n"
        '    runpy.run_path(path, run_name="__main__")\n'
        "    print('ran', path)\n"
    )
    assert run(script, torchvision=page != "performance").count("ran ") == len(blocks)


@pytest.mark.parametrize(
    ("block", "ranks"),
    [("processes", 2), ("threads", 2), ("one_core", 1), ("plain_cpu", 0)],
)
def test_blocks_on_several_devices(block, ranks):
    assert f"ranks: {ranks}" in run(HERE / "pages" / "devices" / f"{block}.py", devices=2)
