"""PyTorch/XLA's training by threads: a copy of the model on each device of the process, and a thread for each.

Of the same name here as there; the older home of `ParallelLoader` too.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from ...processes import process_job, thread_ranks
from .parallel_loader import ParallelLoader

__all__ = ["Context", "DataParallel", "ParallelLoader"]


class Context:
    """What a device's thread keeps from one call of the loop to the next, as attributes.

    Attributes:
        device: the thread's.
    """

    def __init__(self, device: torch.device):
        self.device = device

    def getattr_or(self, name: str, default: Any) -> Any:
        """The attribute; where there is none yet, or None, it becomes `default`, or what that gives when called."""
        value = getattr(self, name, None)
        if value is None:
            value = default() if callable(default) else default
            setattr(self, name, value)
        return value


class DataParallel:
    """Runs training loops on several devices, a thread for each, with a copy of the model on each.

    In the threads `xr.world_size()` is how many devices there are, and `xm`'s collectives and `xm.optimizer_step` work
    among them: their pending graphs are executed as one program for all devices. So every thread has to do the same
    between two collectives.

    Args:
        network: the model, or what makes it. It is copied to each device.
        device_ids: the devices; all by default. With none at all the model stays where it is, and the loop is called
            with the user's own loader.

    Raises:
        ValueError: a device is named twice.
        NotImplementedError: the process is one of several of a job.
        RuntimeError: there are no devices, and the model is on several.
    """

    def __init__(
        self,
        network: torch.nn.Module | Callable[[], torch.nn.Module],
        device_ids: Sequence[str | torch.device] | None = None,
    ):
        from ...platform import xla_devices

        if device_ids is None:
            device_ids = [device.torch_device for device in xla_devices.devices()]
        module = network if isinstance(network, torch.nn.Module) else network()
        self._team: thread_ranks.Team | None = None
        if not device_ids:
            self._devices = [_device_of(module)]
            self._models = [module]
        else:
            if process_job.process_place().size > 1:
                raise NotImplementedError(
                    "DataParallel within one of several processes: use either threads or processes"
                )
            found = [xla_devices.get(device) for device in device_ids]
            if len(set(found)) < len(found):
                raise ValueError(f"device_ids: expected different devices, got {[str(each) for each in device_ids]}")
            self._team = thread_ranks.of(tuple(found))
            self._devices = [device.torch_device for device in found]
            self._models = [copy.deepcopy(module).to(device) for device in self._devices]
        self._contexts = [Context(device) for device in self._devices]

    @property
    def devices(self) -> list[str]:
        """The devices' names."""
        return [str(device) for device in self._devices]

    @property
    def models(self) -> list[torch.nn.Module]:
        """The copies of the model, one for each device."""
        return self._models

    def __call__(
        self,
        loop_fn: Callable[[torch.nn.Module, Iterable[Any], torch.device, Context], Any],
        loader: Iterable[Any],
        fixed_batch_size: bool = False,
        batchdim: int = 0,
    ) -> list[Any]:
        """Calls `loop_fn(model, loader, device, context)` for each device, each in a thread, and waits for them.

        Args:
            loader: gives batches; each goes to one device, as many to each.
            fixed_batch_size, batchdim: accepted for PyTorch/XLA's sake.

        Returns:
            what the calls have returned, in the order of the devices.

        Raises:
            what a call has raised. The other threads end at the next place where they would meet the one that is gone.
        """
        if self._team is None:
            return [loop_fn(self._models[0], loader, self._devices[0], self._contexts[0])]
        from .. import torch_xla

        torch_xla.sync(wait=True)
        batches = ParallelLoader(loader, self._devices, batchdim=batchdim)
        errors: dict[int, BaseException] = {}
        results: list[Any] = [None] * len(self._devices)

        def call(rank: int) -> None:
            try:
                results[rank] = self._call(rank, loop_fn, batches)
            except BaseException as error:
                errors[rank] = error
                self._team.fail()  # type: ignore[union-attr]

        threads = [
            threading.Thread(target=call, args=(rank,), name=str(device), daemon=True)
            for rank, device in enumerate(self._devices)
        ]
        self._team.begin()
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        except BaseException:  # an interrupt, which comes to this thread alone
            self._team.fail()
            raise
        finally:
            self._team.end()
            batches.close()
        if errors:
            raise self._first(errors)
        return results

    def _call(self, rank: int, loop_fn: Callable[..., Any], batches: ParallelLoader) -> Any:
        from .. import torch_xla

        device = self._devices[rank]
        with thread_ranks.Member(self._team, rank).here():
            torch_xla.device(device.index)  # plain `xla` means it in this thread
            result = loop_fn(self._models[rank], batches.per_device_loader(device), device, self._contexts[rank])
            torch_xla.sync()
        return result

    def _first(self, errors: dict[int, BaseException]) -> BaseException:
        """What went wrong, rather than what that led to elsewhere."""
        rank, error = next(
            ((n, e) for n, e in errors.items() if not isinstance(e, thread_ranks.TeamError)), min(errors.items())
        )
        if hasattr(error, "add_note"):  # from Python 3.11 on
            error.add_note(f"in the thread of DataParallel for {self._devices[rank]}")
        return error


def _device_of(module: torch.nn.Module) -> torch.device:
    """Finds the one device of a module.

    Raises:
        RuntimeError: it is on several devices.
    """
    found = {parameter.device for parameter in module.parameters()}
    if len(found) > 1:
        raise RuntimeError(f"the model is on several devices: {sorted(map(str, found))}")
    return found.pop() if found else torch.device("cpu")
