"""`torch.distributed` over xla tensors: `init_process_group("xla", init_method="xla://")`.

Every collective is recorded in the pending graph, like `xm`'s, and done as far as `torch.distributed` can see: what
reads a result waits for it. So asynchronous forms return work that is complete, and a training step with its reductions
is one program. `send` and `recv` are in `point_to_point.py`.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed

from ...compat.distributed import work_from_future
from ...ops.collective import collectives as operators
from ...processes import process_job
from . import device_mesh, fully_sharded, point_to_point

_dist: Any = torch.distributed


class _Operators:
    """`torch.ops.lazy_runtime`'s collectives, whose operands may be on the CPU: pickled objects are, as torch sends
    them.
    """

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
    _dist.Backend.register_backend("xla", _create, extended_api=True, devices=["xla"])
    _dist.register_rendezvous_handler("xla", _rendezvous)


def _rendezvous(url: str, timeout: datetime.timedelta | None = None, **_: Any) -> Any:
    """`xla://`: the place and the store of the process's job; of a process that belongs to none, a job of its own."""
    here = process_job.place()
    if here == process_job.ALONE:
        yield _dist.PrefixStore("torch.distributed", _dist.HashStore()), 0, 1
        return
    yield _dist.PrefixStore("torch.distributed", process_job.store()), here.rank, here.size


def _create(options: Any, _: Any) -> ProcessGroupXla:
    from ...platform import xla_devices

    if xla_devices.is_spmd() and process_job.process_place().size > 1:
        raise NotImplementedError(
            'init_process_group("xla") after use_spmd: XLA reduces over the devices of all processes by itself, and a '
            'process is no rank. For data on the hosts, init_process_group("gloo", init_method="xla://")'
        )
    xla_devices.start()
    point_to_point.register()
    device_mesh.use_process_groups()
    fully_sharded.register()
    size = options.group_size
    ranks = options.global_ranks_in_group or range(size)  # torch names none for the default group
    if not options.global_ranks_in_group and size != process_job.place().size:
        raise ValueError(f"init_process_group: world_size is {size}, but the job has {process_job.place().size} ranks")
    return ProcessGroupXla(options.group_rank, list(ranks))


def _done(result: Any) -> Any:
    future: Any = torch.futures.Future()
    future.set_result(result)
    return work_from_future(future)


class ProcessGroupXla(_dist.ProcessGroup):  # type: ignore[misc]
    """Some ranks of a job, or all.

    Args:
        rank: this one's number among them.
        ranks: theirs in the job.
    """

    def __init__(self, rank: int, ranks: list[int]):
        super().__init__(rank, len(ranks))
        self._ranks = ranks
        self._members = process_job.members(ranks)
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
        return _ops.all_reduce(list(tensors), kind, scale, self._members, self.size())

    def _reduction(self, operation: Any, tensors: Sequence[torch.Tensor]) -> tuple[str, float]:
        return operators.reduction_of_torch(getattr(operation, "op", operation).name, self.size(), tensors)

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

    def reduce_scatter_coalesced(
        self, output_tensors: list[torch.Tensor], input_tensors_list: list[list[torch.Tensor]], opts: Any = None
    ) -> Any:
        """PyTorch/XLA's name of `reduce_scatter`."""
        return self.reduce_scatter(output_tensors, input_tensors_list, opts)

    def _scattered(self, whole: torch.Tensor, operation: Any) -> torch.Tensor:
        kind, scale = self._reduction(operation, [whole])
        return _ops.reduce_scatter(whole, kind, scale, 0, self._members, self.size())

    # ---- what moves tensors

    def broadcast(self, tensors: list[torch.Tensor], opts: Any) -> Any:
        """See torch."""
        return _done(
            _write(tensors, _ops.collective_broadcast(list(tensors), opts.rootRank, self._members, self.size()))
        )

    def _gathered(self, tensor: torch.Tensor) -> torch.Tensor:
        """The ranks' tensors along a new first dimension."""
        return _ops.all_gather(tensor.unsqueeze(0), 0, self._members, self.size())

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
            (sent,) = _ops.collective_broadcast([torch.stack(mine)], opts.rootRank, self._members, self.size())
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
        """See torch."""
        if output_splits or input_splits:
            found = _ops.all_to_all_parts(
                input,
                output_splits or self._equal_parts(output),
                input_splits or self._equal_parts(input),
                self._members,
                self.rank(),
            )
        else:
            found = _ops.all_to_all(input, 0, 0, self._members, self.size())
        return _done(_write([output], [found.view(output.shape)]))

    def _equal_parts(self, tensor: torch.Tensor) -> list[int]:
        return [tensor.shape[0] // self.size()] * self.size()

    def alltoall(self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any = None) -> Any:
        """See torch."""
        flat = torch.cat([_on_xla(x).reshape(-1) for x in inputs])
        sizes = [x.numel() for x in outputs]
        found = _ops.all_to_all_parts(flat, sizes, [x.numel() for x in inputs], self._members, self.rank())
        parts = [part.view(x.shape) for part, x in zip(found.split(sizes), outputs, strict=True)]
        return _done(_write(outputs, parts))

    # torch 2.13's names of what 2.12 calls by those above
    all_gather_single = _allgather_base
    all_gather_single_coalesced = allgather_into_tensor_coalesced
    reduce_scatter_single = _reduce_scatter_base
    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced
    all_to_all_single = alltoall_base

    def send(self, tensors: list[torch.Tensor], target: int, tag: int) -> Any:
        """See torch."""
        return self._begin(tensors, self.rank(), target, tag)

    def recv(self, tensors: list[torch.Tensor], source: int, tag: int) -> Any:
        """See torch."""
        return self._begin(tensors, source, self.rank(), tag, is_received=True)

    def _begin(self, tensors: list[torch.Tensor], source: int, target: int, tag: int, is_received: bool = False) -> Any:
        (tensor,) = tensors
        ranks = self._ranks[source], self._ranks[target]
        return point_to_point.begin(point_to_point.Message(*ranks, tag, tensor, is_received, _ops.transfer))

    def recv_anysource(self, tensors: list[torch.Tensor], tag: int) -> Any:
        """Refuses a message from any rank.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError("recv from any rank on xla: both ranks of a message record it, so name the source")

    def monitored_barrier(self, *_: Any, **__: Any) -> Any:
        """Refuses a barrier that names the ranks which do not come to it.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError("monitored_barrier on xla: call barrier, or this one of a group over gloo")

    def barrier(self, opts: Any = None) -> Any:
        """Executes what is pending, and returns when all ranks have done so."""
        from .. import torch_xla

        torch_xla.sync(wait=True)
        process_job.exchange("barrier", b"", self._ranks)
        return _done(None)


def _write(targets: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
    with torch.no_grad():
        for target, value in zip(targets, values, strict=True):
            target.copy_(value)
    return targets


register()

__all__: list[str] = ["ProcessGroupXla", "register"]


def new_xla_process_group(
    ranks: Any = None, timeout: Any = None, backend: str | None = None, pg_options: Any = None
) -> Any:
    """`torch.distributed.new_group`, which makes xla's groups by itself.

    Args:
        pg_options: accepted for PyTorch/XLA's sake.
    """
    return _dist.new_group(ranks, timeout, backend)
