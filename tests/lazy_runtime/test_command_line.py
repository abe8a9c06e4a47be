"""`python -m lazy_runtime`."""

from __future__ import annotations

import os
import subprocess
import sys

SCRIPT = """\
import sys
import threading
import torch_xla
import torch_xla.core.xla_model as xm

def late():
    threading.main_thread().join()
    print("late", CONSTANT)

def main():
    x = xm.xla_device()
    print(__name__, sys.argv[1:], sys.path[0], __file__, sys.modules["__main__"].main is main, x)
    raise ValueError("mine")

CONSTANT = 7
if __name__ == "__main__":
    if sys.argv[1:] == ["exit"]:
        threading.Thread(target=late).start()
        sys.exit(3)
    main()
"""


def run(*arguments, cwd):
    return subprocess.run(
        [sys.executable, "-m", "lazy_runtime", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
        timeout=240,
    )


def test_a_script(tmp_path):
    folder = tmp_path / "scripts"
    folder.mkdir()
    script = folder / "train.py"
    script.write_text(SCRIPT)
    found = run(script, "--lr", "0.1", cwd=tmp_path)
    assert found.returncode == 1
    assert found.stdout.strip() == f"__main__ ['--lr', '0.1'] {folder} {script} True xla:0"
    trace = found.stderr.splitlines()
    assert trace[0] == "Traceback (most recent call last):"
    assert trace[1].strip().startswith(f'File "{script}", line 20, in <module>')
    assert trace[-1] == "ValueError: mine"
    assert "lazy_runtime" not in found.stderr
    found = run("scripts/train.py", cwd=tmp_path)  # `__file__` is absolute, as Python's since 3.9
    assert found.stdout.strip() == f"__main__ [] {folder} {script} True xla:0"
    found = run("scripts/train.py", "exit", cwd=tmp_path)
    assert (found.returncode, found.stdout.strip(), found.stderr) == (3, "late 7", "")


def test_a_module(tmp_path):
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("")
    (tmp_path / "package" / "train.py").write_text(SCRIPT)
    found = run("-m", "package.train", "a", cwd=tmp_path)
    assert found.returncode == 1
    assert f"__main__ ['a'] {tmp_path} {tmp_path}/package/train.py True xla:0" in found.stdout
    assert found.stderr.splitlines()[1].strip().startswith(f'File "{tmp_path}/package/train.py", line 20')


CHILDREN = """\
import torch_xla.core.xla_model as xm
import multiprocessing, subprocess, sys
import torch

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 1

    def __getitem__(self, index):
        import torch_xla
        return torch.tensor([__name__ == "__mp_main__", torch_xla.__name__ == xm.__package__.rpartition(".")[0]])

def work(*arguments):
    print(__name__, xm.__name__, *arguments, flush=True)

if __name__ == "__main__":
    print(next(iter(torch.utils.data.DataLoader(Data(), num_workers=1, multiprocessing_context="spawn"))).tolist())
    torch.multiprocessing.spawn(work, args=("spawned",), nprocs=1)
    process = multiprocessing.get_context("forkserver").Process(target=work, args=("served",))
    process.start()
    process.join()
    sys.stdout.flush()
    again = "import lazy_runtime; lazy_runtime.install_torch_xla_alias(); import torch_xla; print(torch_xla.__name__)"
    subprocess.run([sys.executable, "-c", again], check=True)
    subprocess.run([sys.executable, "-m", "lazy_runtime", "-m", "child"], check=True)
"""


def test_processes_that_a_script_starts(tmp_path):
    (tmp_path / "script.py").write_text(CHILDREN)
    (tmp_path / "child.py").write_text("import torch_xla.runtime as xr; print(__name__, xr.__name__)")
    found = run("script.py", cwd=tmp_path)
    assert (found.returncode, found.stderr) == (0, "")
    assert found.stdout.splitlines() == [
        "[[True, True]]",
        "__mp_main__ lazy_runtime.torch_xla.core.xla_model 0 spawned",
        "__mp_main__ lazy_runtime.torch_xla.core.xla_model served",
        "lazy_runtime.torch_xla",
        "__main__ lazy_runtime.torch_xla.runtime",
    ]


VERSIONS = """\
import importlib.metadata
print(importlib.metadata.version("torch_xla"), "torch_xla" in __import__("sys").modules)
import torch_xla
print(torch_xla.__version__)
"""


def test_the_distribution_in_processes_that_a_script_starts(tmp_path):
    (tmp_path / "versions.py").write_text(VERSIONS)
    run_it = "[sys.executable, '-m', 'torch.distributed.run', '--nproc-per-node=1', 'versions.py']"
    (tmp_path / "script.py").write_text(
        f"import subprocess, sys, versions\nsubprocess.run({run_it}, check=True, stdout=sys.stderr)"
    )
    found = run("script.py", cwd=tmp_path)
    assert found.returncode == 0, found.stderr
    assert found.stdout.split() == ["2.9.0", "False", "2.9.0"]
    assert found.stderr.split()[-3:] == ["2.9.0", "False", "2.9.0"]


def test_what_cannot_be_run(tmp_path):
    found = run("nothing.py", cwd=tmp_path)
    assert found.returncode == 2
    assert found.stderr == "python -m lazy_runtime: can't open file 'nothing.py': No such file or directory\n"
    found = run("--fast", cwd=tmp_path)
    assert found.returncode == 2
    assert "expected a script, or -m and a module, got --fast" in found.stderr
    (tmp_path / "torch_xla.py").write_text("")
    (tmp_path / "script.py").write_text("import torch_xla; print(torch_xla.__name__)")
    found = run("script.py", cwd=tmp_path)
    assert found.returncode == 1
    assert "torch_xla is installed at" in found.stderr
    found = run("--replace", "script.py", cwd=tmp_path)
    assert (found.returncode, found.stdout) == (0, "lazy_runtime.torch_xla\n")
