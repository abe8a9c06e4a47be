"""`torch.distributed` over xla tensors: `init_process_group("xla", init_method="xla://")`.

Every collective is recorded in the pending graph, like `xm`'s, and done as far as `torch.distributed` can see: what
reads a result waits for it. So asynchronous forms return work that is complete, and a training step with its reductions
is one program.
"""

from __future__ import annotations

import datetime
import importlib
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed

from . import job

_dist: Any = torch.distributed
_c10d: Any = importlib.import_module("torch._C._distributed_c10d")


class _Operators:
    """`torch.ops.lazy_runtime`'s collectives, whose operands may be on the CPU: pickled objects are, as torch sends
    them."""

    def __getattr__(self, name: str) -> Any:
        operator = getattr(torch.ops.lazy_runtime, name)
        return lambda operands, *arguments: operator(_on_xla(operands), *arguments)


_ops = _Operators()


def _on_xla(operands: Any) -> Any:
    if isinstance(operands, torch.Tensor):
        return operands if operands.device.type == "xla" else operands.to("xla")
    return [_on_xla(tensor) for tensor in operands]


def register() -> None:
    """Makes the backend `xla`, and the init method `xla://`, known to `torch.distributed`. Idempotent."""
    if "xla" in _dist.Backend.backend_list:
        return
    _dist.Backend.register_backend("xla", _create, devices=["xla"])
    _dist.register_rendezvous_handler("xla", _rendezvous)


def _rendezvous(url: str, timeout: datetime.timedelta | None = None, **_: Any) -> Any:
    """`xla://`: the place and the store of the process's job.

    Raises:
        RuntimeError: the environment names none.
    """
    here = job.place()
    if here == job.ALONE:
        raise RuntimeError(
            f"{url}: this process belongs to no job. Start it by torchrun, xmp.spawn or lazy_runtime.launch, which set "
            "RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT"
        )
    yield _dist.PrefixStore("torch.distributed", job.store()), here.rank, here.size


def _create(store: Any, rank: int, size: int, timeout: datetime.timedelta) -> ProcessGroupXla:
    from .. import xla_devices

    xla_devices.start()
    return ProcessGroupXla(store, rank, size)


def _done(result: Any) -> Any:
    future: Any = torch.futures.Future()
    future.set_result(result)
    return _c10d._create_work_from_future(future)


class ProcessGroupXla(_dist.ProcessGroup):  # type: ignore[misc]
    """All ranks of a job.

    Raises:
        NotImplementedError: the group has some of the job's ranks only.
    """

    def __init__(self, store: Any, rank: int, size: int):
        super().__init__(rank, size)
        if size != job.place().size:
            raise NotImplementedError(
                f"a process group of {size} of the job's {job.place().size} ranks: on xla, groups of all ranks are "
                "supported so far"
            )

        self._name = self._description = ""

    def getBackendName(self) -> str:
        """See torch."""
        return "xla"

    def setGroupName(self, name: str) -> None:
        """Torch's own keeps it in backends, of which there is none here."""
        self._name = name

    def getGroupName(self) -> str:
        """See torch."""
        return self._name

    def setGroupDesc(self, description: str) -> None:
        """See torch."""
        self._description = description

    def getGroupDesc(self) -> str:
        """See torch."""
        return self._description

    # ---- reductions

    def allreduce(self, tensors: list[torch.Tensor], opts: Any = None) -> Any:
        """See torch."""
        operation = getattr(opts, "reduceOp", _dist.ReduceOp.SUM)
        return _done(_write(tensors, self._reduced(tensors, operation)))

    def allreduce_coalesced(self, tensors: list[torch.Tensor], opts: Any = None) -> Any:
        """See torch."""
        return self.allreduce(tensors, opts)

    def reduce(self, tensors: list[torch.Tensor], opts: Any) -> Any:
        """See torch."""
        reduced = self._reduced(tensors, opts.reduceOp)
        return _done(_write(tensors, reduced) if self.rank() == opts.rootRank else tensors)

    def _reduced(self, tensors: Sequence[torch.Tensor], operation: Any) -> list[torch.Tensor]:
        kind, scale = self._reduction(operation, tensors)
        return _ops.all_reduce(list(tensors), kind, scale, [], self.size())

    def _reduction(self, operation: Any, tensors: Sequence[torch.Tensor]) -> tuple[str, float]:
        operation = getattr(operation, "op", operation)
        kind = _KINDS.get(operation)
        if kind is None:
            raise NotImplementedError(f"the reduction {operation} over xla tensors")
        for tensor in tensors:
            integral = not (tensor.is_floating_point() or tensor.is_complex())
            if operation == _dist.ReduceOp.AVG and integral:
                raise TypeError(f"ReduceOp.AVG of {tensor.dtype}: an average is no integer")
            if kind in ("and", "or", "xor") and not integral:
                raise TypeError(f"{operation} of {tensor.dtype}: bits of integers alone can be combined")
            if kind in ("min", "max") and tensor.is_complex():
                raise TypeError(f"{operation} of {tensor.dtype}: complex numbers have no order")
        return kind, 1.0 / self.size() if operation == _dist.ReduceOp.AVG else 1.0

    def _reduce_scatter_base(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> Any:
        operation = getattr(opts, "reduceOp", _dist.ReduceOp.SUM)
        return _done(_write([output], [self._scattered(input, operation).view(output.shape)]))

    def reduce_scatter_tensor_coalesced(
        self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any = None
    ) -> Any:
        """See torch."""
        for output, input in zip(outputs, inputs, strict=True):
            self._reduce_scatter_base(output, input, opts)
        return _done(outputs)

    def reduce_scatter(self, outputs: list[torch.Tensor], inputs: list[list[torch.Tensor]], opts: Any = None) -> Any:
        """See torch."""
        operation = getattr(opts, "reduceOp", _dist.ReduceOp.SUM)
        for output, parts in zip(outputs, inputs, strict=True):
            if len({part.shape for part in parts}) > 1:  # of which XLA has no scattering form
                output.copy_(self._reduced(parts, operation)[self.rank()])
            else:
                output.copy_(self._scattered(torch.stack(parts), operation)[0])
        return _done(outputs)

    def _scattered(self, whole: torch.Tensor, operation: Any) -> torch.Tensor:
        kind, scale = self._reduction(operation, [whole])
        return _ops.reduce_scatter(whole, kind, scale, 0, [], self.size())

    # ---- what moves tensors

    def broadcast(self, tensors: list[torch.Tensor], opts: Any) -> Any:
        """See torch."""
        return _done(_write(tensors, _ops.collective_broadcast(list(tensors), opts.rootRank, [], self.size())))

    def _gathered(self, tensor: torch.Tensor) -> torch.Tensor:
        """The ranks' tensors along a new first dimension."""
        return _ops.all_gather(tensor.unsqueeze(0), 0, [], self.size())

    def allgather(self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any = None) -> Any:
        """See torch."""
        for places, tensor in zip(outputs, inputs, strict=True):
            _write(places, self._gathered(tensor).unbind())
        return _done(outputs)

    def _allgather_base(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> Any:
        return _done(_write([output], [self._gathered(input).view(output.shape)]))

    def allgather_into_tensor_coalesced(
        self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any = None
    ) -> Any:
        """See torch."""
        for output, input in zip(outputs, inputs, strict=True):
            self._allgather_base(output, input)
        return _done(outputs)

    def allgather_coalesced(
        self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any = None
    ) -> Any:
        """See torch."""
        for rank, places in enumerate(outputs):
            for place, tensor in zip(places, inputs, strict=True):
                place.copy_(self._gathered(tensor)[rank])
        return _done(outputs)

    def gather(self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any) -> Any:
        """See torch."""
        for number, tensor in enumerate(inputs):
            found = self._gathered(tensor).unbind()
            if self.rank() == opts.rootRank:
                _write(outputs[number], found)
        return _done(outputs)

    def scatter(self, outputs: list[torch.Tensor], inputs: list[list[torch.Tensor]], opts: Any) -> Any:
        """See torch."""
        for number, output in enumerate(outputs):
            mine = inputs[number] if self.rank() == opts.rootRank else [output] * self.size()
            (sent,) = _ops.collective_broadcast([torch.stack(mine)], opts.rootRank, [], self.size())
            output.copy_(sent[self.rank()])
        return _done(outputs)

    def alltoall_base(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_splits: list[int],
        input_splits: list[int],
        opts: Any = None,
    ) -> Any:
        """See torch.

        Raises:
            NotImplementedError: the parts are of several sizes.
        """
        if len({*output_splits, *input_splits}) > 1:
            raise NotImplementedError(
                f"all_to_all_single with parts of several sizes on xla: {output_splits} from {input_splits}"
            )
        return _done(_write([output], [_ops.all_to_all(input, 0, 0, [], self.size()).view(output.shape)]))

    def alltoall(self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any = None) -> Any:
        """See torch.

        Raises:
            NotImplementedError: the parts are of several sizes.
        """
        if len({tensor.shape for tensor in (*outputs, *inputs)}) > 1:
            raise NotImplementedError("all_to_all with parts of several sizes on xla")
        return _done(_write(outputs, _ops.all_to_all(torch.stack(inputs), 0, 0, [], self.size()).unbind()))

    # torch 2.13's names of what 2.12 calls by those above
    all_gather_single = _allgather_base
    all_gather_single_coalesced = allgather_into_tensor_coalesced
    reduce_scatter_single = _reduce_scatter_base
    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced
    all_to_all_single = alltoall_base

    def barrier(self, opts: Any = None) -> Any:
        """Executes what is pending, and returns when all ranks have done so."""
        from .. import _api

        _api.sync(wait=True)
        job.exchange("barrier", b"")
        return _done(None)


_KINDS = {
    _dist.ReduceOp.SUM: "sum",
    _dist.ReduceOp.AVG: "sum",
    _dist.ReduceOp.PRODUCT: "mul",
    _dist.ReduceOp.MIN: "min",
    _dist.ReduceOp.MAX: "max",
    _dist.ReduceOp.BAND: "and",
    _dist.ReduceOp.BOR: "or",
    _dist.ReduceOp.BXOR: "xor",
}


def _write(targets: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
    with torch.no_grad():
        for target, value in zip(targets, values, strict=True):
            target.copy_(value)
    return targets


register()

__all__: list[str] = ["ProcessGroupXla", "register"]
