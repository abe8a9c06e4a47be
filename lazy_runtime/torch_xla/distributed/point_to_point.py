"""`torch.distributed`'s `send`, `recv`, `isend`, `irecv` and `batch_isend_irecv` over xla tensors.

A message is a collective of two ranks, which both have to record at the same place of their order. Blocking calls say
where that is. What `isend` and `irecv` have begun since somebody last waited may be in any order, and one rank's first
be the other's last (`batch_isend_irecv` calls them one by one). So these are kept, and recorded in an order that is the
same for all ranks when one of them is waited for, when another collective is recorded, or when the graph is executed.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.distributed

from ...compat.torch import DispatchKey, SetExcludeDispatchKeyGuard
from ...execution import execute
from ...ops import registry
from ...processes import process_job
from ...recording import dispatch

_dist: Any = torch.distributed


class Message(NamedTuple):
    """One that has been begun.

    Attributes:
        source, target: ranks of the job.
        tag: tells messages of the same two ranks apart.
        tensor: what is sent, or written to.
        record: sends a tensor from one rank to another, this one being one of them; what the target gets.
    """

    source: int
    target: int
    tag: int
    tensor: torch.Tensor
    is_received: bool
    record: Callable[[torch.Tensor, int, int], torch.Tensor]

    def order(self) -> tuple[int, ...]:
        """Its place among all messages of the job: in rounds in which each rank has one partner."""
        turn = (self.source + self.target) % process_job.place().size
        return turn, min(self.source, self.target), self.source, self.tag


_begun: list[Message] = []


def begin(message: Message) -> Work:
    """Sends or receives, as far as the caller can see once he has waited.

    Raises:
        ValueError: the message is to this rank itself.
    """
    if message.source == message.target:
        raise ValueError(f"rank {message.source}: a message to itself on xla: copy the tensor")
    _begun.append(message)
    return Work()


def record_begun() -> None:
    """Records the messages that have been begun."""
    if not _begun or dispatch.current_trace() is not None:
        return
    messages = sorted(_begun, key=Message.order)
    _begun.clear()
    # where an operator is being recorded, functionalization is behind us
    with torch.no_grad(), SetExcludeDispatchKeyGuard(DispatchKey.Functionalize, False):
        for message in messages:
            sent = message.record(message.tensor, message.source, message.target)
            if message.is_received:
                message.tensor.copy_(sent)
            elif message.tensor.device.type != "xla":  # who receives it in plain memory too waits for it there
                sent.cpu()


class Work(_dist.Work):  # type: ignore[misc]
    """A message that is recorded when somebody waits for it, and done when it is read."""

    def wait(self, timeout: datetime.timedelta | None = None) -> bool:
        """See torch."""
        record_begun()
        return True

    def is_completed(self) -> bool:
        """See torch."""
        return self.wait()


def _after_begun(func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    record_begun()
    operator = registry.lookup(func)
    assert operator is not None
    return dispatch.record(operator, args, kwargs)


def register() -> None:
    """Lets other collectives, and executions, come after what has been begun."""
    for operator in list(registry.table.values()):
        if operator.collective and operator.name != "lazy_runtime::transfer":
            dispatch.handler(operator.name)(_after_begun)
    execute.before_run = dispatch.before_collective = record_begun
