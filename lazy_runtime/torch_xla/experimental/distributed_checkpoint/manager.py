"""PyTorch/XLA's `CheckpointManager`: checkpoints of a job, the last of which is always a whole one.

Torch's `torch.distributed.checkpoint` writes them; here is what makes a folder of them safe. One is written under
another name, and gets its own when all of it is on the disk. Whatever a killed job has left is taken away when the next
one begins.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
import torch.distributed
import torch.distributed.checkpoint

from ....common.whole_files import flush
from ....compat import distributed
from ....compat.torch import tree_map_only
from . import planners

_dist: Any = torch.distributed
_dcp: Any = torch.distributed.checkpoint

_UNFINISHED, _REPLACED = ".unfinished-", ".replaced-"

#: How many steps after one at which a rank has been told to end all ranks save.
NOTICE_STEPS = 8


class CheckpointManager:
    """Checkpoints of steps in a folder that all ranks see. All ranks make it, and call its methods alike.

    Args:
        path: the folder.
        save_interval: steps between two checkpoints.
        max_to_keep: how many to keep, the latest ones; 0 is all.
        max_pending_async: how many calls of `save_async` may be at work at once: the next one waits.
        process_group: by which ranks come to terms, one of CPU tensors; by default a new one over gloo.
        chkpt_on_preemption: a SIGTERM does not end the process: `should_save` says so at a step soon after it, and
            `reached_preemption` tells why.

    Raises:
        ValueError: a number is too small.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        save_interval: int,
        max_to_keep: int = 0,
        max_pending_async: int = 1,
        process_group: Any = None,
        chkpt_on_preemption: bool = True,
    ):
        for name, value, least in (
            ("save_interval", save_interval, 1),
            ("max_to_keep", max_to_keep, 0),
            ("max_pending_async", max_pending_async, 1),
        ):
            if value < least:
                raise ValueError(f"{name}: expected {least} or more, got {value}")
        self._path = os.fspath(path)
        self._interval, self._kept, self._most_pending = save_interval, max_to_keep, max_pending_async
        self._group = process_group
        if process_group is None and _dist.is_initialized():
            self._group = _dist.new_group(backend="gloo")
        self._is_first = self._group is None or _dist.get_rank(self._group) == 0
        self._thread = ThreadPoolExecutor(1, "lazy_runtime checkpoint")
        self._pending: deque[Future[None]] = deque()
        self._told_to_end = False
        if chkpt_on_preemption and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._note_end)
        self._on_first(self._clean)

    # ---- saving

    def should_save(self, step: int) -> bool:
        """Whether this step is to be saved: by the interval, or since the process is about to be ended."""
        return step % self._interval == 0 or self.reached_preemption(step)

    def save(self, step: int, state_dict: dict[str, Any], force: bool = False) -> bool:
        """Saves a step, if it is to be; returns when that is on the disk.

        Args:
            state_dict: as torch's `get_state_dict` and its like give it, the tensors on any device.
            force: even if it is not to be.

        Returns:
            whether it was.

        Raises:
            what went wrong in this or in an earlier `save_async`.
        """
        self.join()
        if not force and not self.should_save(step):
            return False
        self._write(step, state_dict)
        return True

    def save_async(self, step: int, state_dict: dict[str, Any], force: bool = False) -> bool:
        """As `save`, but returns at once. What is saved are the values that the tensors have now.

        Raises:
            what went wrong in an earlier call.
        """
        while self._pending and (self._pending[0].done() or len(self._pending) >= self._most_pending):
            self._pending.popleft().result()
        if not force and not self.should_save(step):
            return False
        self._pending.append(self._thread.submit(self._write, step, _snapshot(state_dict)))
        return True

    def join(self) -> None:
        """Waits for what `save_async` has begun.

        Raises:
            what went wrong in it.
        """
        while self._pending:
            self._pending.popleft().result()

    def reached_preemption(self, step: int) -> bool:
        """Whether the job is about to be ended, and this is the step at which all ranks save: a few after the one at
        which the first of them was told so.
        """
        if _dist.is_initialized():
            notes = distributed.get_default_store()
            if self._told_to_end:
                last = notes.compare_set("lazy_runtime/last step", "", str(step + NOTICE_STEPS))
            elif notes.check(["lazy_runtime/last step"]):
                last = notes.get("lazy_runtime/last step")
            else:
                return False
            return step == int(last)
        return self._told_to_end

    def _note_end(self, *_: Any) -> None:
        self._told_to_end = True

    # ---- what there is

    def all_steps(self) -> list[int]:
        """The steps of which there is a whole checkpoint, in order."""
        if not os.path.isdir(self._path):
            return []
        return sorted(int(name) for name in os.listdir(self._path) if re.fullmatch(r"\d+", name))

    def restore(self, step: int, state_dict: dict[str, Any]) -> None:
        """Loads a step into the tensors of a state dict, in place.

        Raises:
            FileNotFoundError: there is none of this step.
        """
        self.join()
        if step not in self.all_steps():
            raise FileNotFoundError(f"no checkpoint of step {step} in {self._path}: there are {self.all_steps()}")
        with _alone_on_purpose():
            _dcp.load(
                state_dict,
                checkpoint_id=self._of(step),
                planner=planners.SPMDLoadPlanner(),
                process_group=self._group,
                no_dist=self._group is None,
            )

    # ---- on the disk

    def _of(self, step: int, prefix: str = "") -> str:
        return os.path.join(self._path, f"{prefix}{step}")

    def _write(self, step: int, state_dict: dict[str, Any]) -> None:
        unfinished = self._of(step, _UNFINISHED)
        self._on_first(lambda: shutil.rmtree(unfinished, ignore_errors=True))
        state = tree_map_only(torch.Tensor, _on_cpu, state_dict)
        with _alone_on_purpose():
            _dcp.save(
                state,
                checkpoint_id=unfinished,
                planner=planners.SPMDSavePlanner(),
                process_group=self._group,
                no_dist=self._group is None,
            )
        self._on_first(lambda: self._finish(step))

    def _finish(self, step: int) -> None:
        """Gives a checkpoint its name, and removes those that are too many."""
        unfinished, replaced, final = self._of(step, _UNFINISHED), self._of(step, _REPLACED), self._of(step)
        flush(unfinished)  # the files in it are on the disk already
        if os.path.isdir(final):
            os.rename(final, replaced)
        os.rename(unfinished, final)
        flush(self._path)
        shutil.rmtree(replaced, ignore_errors=True)
        if self._kept:
            for old in self.all_steps()[: -self._kept]:
                os.rename(self._of(old), self._of(old, _REPLACED))  # half of it would not look like a checkpoint
                shutil.rmtree(self._of(old, _REPLACED), ignore_errors=True)

    def _clean(self) -> None:
        """Removes what a job has left that was killed."""
        os.makedirs(self._path, exist_ok=True)
        for name in sorted(os.listdir(self._path)):  # what is replaced comes before what replaces it
            found = re.fullmatch(rf"({_UNFINISHED}|{_REPLACED})(\d+)", name)
            if found is None:
                continue
            if found[1] == _REPLACED and self._kept_back(int(found[2])):
                os.rename(self._of(int(found[2]), _REPLACED), self._of(int(found[2])))
            else:
                shutil.rmtree(os.path.join(self._path, name), ignore_errors=True)

    def _kept_back(self, step: int) -> bool:
        """It was about to be replaced by another one of its step, which has not got its name."""
        return not os.path.isdir(self._of(step)) and os.path.isdir(self._of(step, _UNFINISHED))

    def _on_first(self, function: Callable[[], None]) -> None:
        """Calls a function on the first rank, for which the others wait.

        Raises:
            what it raises, everywhere.
        """
        error: Exception | None = None
        if self._is_first:
            try:
                function()
            except Exception as found:
                error = found
        if self._group is not None:
            said = [None if error is None else f"{type(error).__name__}: {error}"]
            _dist.broadcast_object_list(said, group_src=0, group=self._group, device=torch.device("cpu"))
            if said[0] is not None and error is None:
                raise RuntimeError(f"rank 0 could not go on: {said[0]}")
        if error is not None:
            raise error


@contextlib.contextmanager
def _alone_on_purpose() -> Iterator[None]:
    """Without torch's warning where there are no other ranks."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or uninitialized")
        yield


def _snapshot(state_dict: dict[str, Any]) -> dict[str, Any]:
    """The state dict with tensors that keep the values of now, whatever is written to the given ones."""
    from ... import torch_xla

    found = tree_map_only(torch.Tensor, _kept_tensor, state_dict)
    torch_xla.sync()  # a thread must not execute what is pending
    return found


def _kept_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """On xla, a tensor of the same buffer, which is immutable, and not donated while somebody holds it."""
    from ....tensor.xla_tensor import XLATensor, make, to_user, unwrap
    from ...distributed.spmd import unwrap_sharded_tensor

    tensor = unwrap_sharded_tensor(tensor)
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter, XLATensor) or tensor.device.type != "xla":
        return tensor.detach().clone()
    inner = unwrap(tensor.detach())
    return to_user(make(inner.handle, inner.spec))


def _on_cpu(tensor: torch.Tensor) -> torch.Tensor:
    """On the CPU, but for what is written in parts."""
    is_whole = type(tensor) in (torch.Tensor, torch.nn.Parameter) and not planners.has_parts(tensor)
    return tensor.detach().cpu() if is_whole else tensor
