"""Saving tensors of two runs of a program on the way, and comparing them afterwards.

`python -m lazy_runtime.torch_xla.debug.model_comparator DIRECTORY DIRECTORY` compares two directories.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import traceback
from collections import Counter

import torch

_directory: str | None = None
_counts: Counter[str] = Counter()  # how many tensors have been saved under a name, in this step
_step: int | None = None


def configure(save_dir: str | None) -> None:
    """Names the directory that `save` saves to. None leaves that to `MODELCMP_SAVEDIR`; without both, nothing is
    saved.
    """
    global _directory, _step
    _directory, _step = save_dir, None
    _counts.clear()


def save(name: str | None, tensor: torch.Tensor, step: int | None = None) -> torch.Tensor:
    """Saves a tensor on the first replica, as the next of its name: `NAME.0`, `NAME.1`, ...

    Args:
        name: by default the caller's file and line.
        tensor: on any device.
        step: puts it into a directory `step-N`, where the numbers begin anew.

    Returns:
        the tensor, so that a call can stand around an expression.
    """
    global _step
    directory = _directory or os.environ.get("MODELCMP_SAVEDIR")
    if directory is None:
        return tensor
    on_cpu = tensor.detach().cpu()
    from ..core import xla_model

    if not xla_model.is_master_ordinal():
        return tensor
    if name is None:
        caller = traceback.extract_stack(limit=2)[0]
        name = f"{os.path.basename(caller.filename)}.l{caller.lineno}"
    if step is not None:
        if step != _step:
            _step = step
            _counts.clear()
        directory = os.path.join(directory, f"step-{step}")
    os.makedirs(directory, exist_ok=True)
    torch.save(on_cpu, os.path.join(directory, f"{name}.{_counts[name]}"))
    _counts[name] += 1
    return tensor


def compare_tensors(
    tensor1: torch.Tensor, tensor2: torch.Tensor, rtol: float = 1e-05, atol: float = 1e-08, max_diffs: int = 25
) -> str:
    """The elements that differ by more than `atol` and more than `rtol` times the greater of the two, one a line, the
    greatest difference first; empty if there are none. NaN equals NaN.

    Args:
        max_diffs: how many are shown.
    """
    if tensor1.shape != tensor2.shape:
        return f"the tensors' sizes are {list(tensor1.shape)} and {list(tensor2.shape)}\n"
    wide = torch.complex128 if tensor1.is_complex() or tensor2.is_complex() else torch.float64
    first, second = tensor1.detach().cpu().to(wide), tensor2.detach().cpu().to(wide)
    error = (first - second).abs().reshape(-1)
    bound = (torch.maximum(first.abs(), second.abs()) * rtol).clamp(min=atol).reshape(-1)
    both_nan = (first.isnan() & second.isnan()).reshape(-1)
    equal = (first == second).reshape(-1)  # infinities: their difference is NaN
    (differing,) = torch.where(~(error <= bound) & ~equal & ~both_nan)
    order = differing[error[differing].nan_to_num(nan=torch.inf).argsort(descending=True)]
    rows = []
    for number in order[:max_diffs].tolist():
        place = [int(each) for each in torch.unravel_index(torch.tensor(number), first.shape)]
        values = first.reshape(-1)[number].item(), second.reshape(-1)[number].item()
        rows.append(f"{place}: {values[0]} vs. {values[1]}, error {error[number].item()}\n")
    if len(order) > max_diffs:
        rows.append(f"... and {len(order) - max_diffs} more\n")
    return "".join(rows)


def tensor_file_compare(path1: str, path2: str, rtol: float = 1e-05, atol: float = 1e-08, max_diffs: int = 25) -> str:
    """`compare_tensors` of two files that `save` has written, with a title; empty if they are equal."""
    report = compare_tensors(torch.load(path1), torch.load(path2), rtol, atol, max_diffs)
    if not report:
        return ""
    return f"{os.path.basename(path1)} of {os.path.dirname(path1)} and {os.path.dirname(path2)}:\n" + "".join(
        f"  {line}\n" for line in report.splitlines()
    )


def compare(save_dir1: str, save_dir2: str, rtol: float = 1e-05, atol: float = 1e-08, max_diffs: int = 25) -> str:
    """`tensor_file_compare` of all that two runs have saved, and what one of them has not; empty if all is equal."""
    first, second = _files(save_dir1), _files(save_dir2)
    report = ""
    for name in sorted(first | second):
        if name in first and name in second:
            paths = os.path.join(save_dir1, name), os.path.join(save_dir2, name)
            report += tensor_file_compare(*paths, rtol, atol, max_diffs)
        else:
            report += f"{name} is not in {save_dir2 if name in first else save_dir1}\n"
    return report


def _files(directory: str) -> set[str]:
    found = [os.path.join(root, name) for root, _, names in os.walk(directory) for name in names]
    return {os.path.relpath(path, directory) for path in found if re.search(r"\.\d+$", path)}


def _main() -> int:
    parser = argparse.ArgumentParser(description="Compares what two runs of a program have saved.")
    parser.add_argument("savedir1")
    parser.add_argument("savedir2")
    parser.add_argument("--rtol", type=float, default=1e-05)
    parser.add_argument("--atol", type=float, default=1e-08)
    parser.add_argument("--max_diffs", type=int, default=25)
    given = parser.parse_args()
    report = compare(given.savedir1, given.savedir2, given.rtol, given.atol, given.max_diffs)
    sys.stderr.write(report)
    return 1 if report else 0


if __name__ == "__main__":
    sys.exit(_main())
