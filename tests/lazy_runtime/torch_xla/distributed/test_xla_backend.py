"""`torch.distributed` over xla tensors, against torch's own gloo backend in the same processes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.distributed
import torch.distributed._functional_collectives as functional

import lazy_runtime
from lazy_runtime.common import metrics
from lazy_runtime.torch_xla.distributed import xla_backend

dist: Any = torch.distributed

both = pytest.mark.parametrize("count", [2, 4])


def gloo() -> Any:
    """A group of the same ranks over gloo; makes the group over xla the default one."""
    global _gloo
    if not dist.is_initialized():
        xla_backend.register()
        dist.init_process_group("xla", init_method="xla://")
        _gloo = dist.new_group(backend="gloo")
    return _gloo


_gloo: Any = None


def mine(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(dist.get_rank())
    return (torch.randn(shape, generator=generator, dtype=torch.float64) * 4).to(dtype)


def executions() -> int:
    return metrics.value("ExecuteComputation")


# ---- collectives


def _reductions(tensor: torch.Tensor, group: Any, ranks: list[int]) -> list[torch.Tensor]:
    found = []
    kinds = ["SUM", "PRODUCT", "MIN", "MAX"]
    if tensor.dtype in (torch.int32, torch.int64, torch.uint8):
        kinds += ["BAND", "BOR", "BXOR"]
    for kind in kinds:
        found.append(tensor.clone())
        dist.all_reduce(found[-1], getattr(dist.ReduceOp, kind), group=group)
    found.append(tensor.clone())
    dist.reduce(found[-1], ranks[1], group=group)
    if dist.get_rank() != ranks[1]:  # where gloo leaves what it had on the way
        found.pop()
    return found


def _moves(tensor: torch.Tensor, group: Any, ranks: list[int]) -> list[torch.Tensor]:
    rank, size = dist.get_rank(), len(ranks)
    sent = tensor.clone()
    dist.broadcast(sent, ranks[1], group=group)
    gathered = [torch.empty_like(tensor) for _ in range(size)]
    dist.all_gather(gathered, tensor, group=group)
    whole = tensor.new_empty(size * tensor.shape[0], *tensor.shape[1:])
    dist.all_gather_into_tensor(whole, tensor, group=group)
    at_root = [torch.empty_like(tensor) for _ in range(size)] if rank == ranks[0] else None
    dist.gather(tensor, at_root, ranks[0], group=group)
    part = torch.empty_like(tensor)
    parts = [tensor + number for number in range(size)] if rank == ranks[1] else None
    dist.scatter(part, parts, ranks[1], group=group)
    exchanged = torch.empty_like(whole)
    dist.all_to_all_single(exchanged, torch.cat([tensor + number for number in range(size)]), group=group)
    return [sent, *gathered, whole, *(at_root or []), part, exchanged]


def _uneven(tensor: torch.Tensor, group: Any, ranks: list[int]) -> list[torch.Tensor]:
    """Parts of several sizes, none and equal ones among them."""
    place, size = ranks.index(dist.get_rank()), len(ranks)
    sizes = [[(source * target + source) % 3 for target in range(size)] for source in range(size)]
    sent, taken = sizes[place], [sizes[source][place] for source in range(size)]
    exchanged = tensor.new_empty(sum(taken), 3)
    dist.all_to_all_single(exchanged, tensor[:1].repeat(sum(sent), 1), taken, sent, group=group)
    messages = [torch.cat([tensor.flatten(), tensor.flatten()])[: 2 + length] for length in sent]
    places = [tensor.new_empty(2 + length) for length in taken]
    for each, message in zip(places, messages, strict=True):
        each.zero_()
        message += place
    if tensor.device.type == "xla":  # gloo has no list form
        dist.all_to_all(places, messages, group=group)
    else:
        dist.all_to_all_single(
            flat := torch.cat(places), torch.cat(messages), [len(x) for x in places], [len(x) for x in messages], group
        )
        places = list(flat.split([len(x) for x in places]))
    return [exchanged, *places]


def _scattered(tensor: torch.Tensor, group: Any, ranks: list[int]) -> list[torch.Tensor]:
    size = len(ranks)
    part = torch.empty_like(tensor)
    dist.reduce_scatter_tensor(part, torch.cat([tensor + number for number in range(size)]), group=group)
    other = torch.empty_like(tensor)
    dist.reduce_scatter(other, [tensor * number for number in range(size)], dist.ReduceOp.MAX, group=group)
    return [part, other]


DTYPES = (torch.float32, torch.float64, torch.int32, torch.int64, torch.uint8)


def compare(ranks: list[int], gloos: Any, ours: Any, dtypes: Sequence[torch.dtype] = DTYPES) -> None:
    """Every collective of a group, and one execution for each kind and dtype."""
    for dtype in dtypes:
        tensor = mine(2, 3, dtype=dtype)
        for function in (_reductions, _moves, _uneven, _scattered):
            wanted = function(tensor, gloos, ranks)
            found = function(tensor.to("xla"), ours, ranks)
            before = executions()
            lazy_runtime.sync()
            assert executions() == before + 1
            for number, (theirs, our) in enumerate(zip(wanted, found, strict=True)):
                where = f"{number} of {function.__name__} of {dtype} among {ranks}: "
                torch.testing.assert_close(our.cpu(), theirs, msg=lambda message, where=where: where + message)


def differences() -> None:
    group = gloo()
    compare(list(range(dist.get_world_size())), group, None)
    objects: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(objects, {"rank": dist.get_rank()})
    assert objects == [{"rank": rank} for rank in range(dist.get_world_size())]
    pending = mine(3).to("xla")
    work = dist.all_reduce(pending, async_op=True)
    work.wait()
    assert work.is_completed()
    dist.barrier()


@both
def test_collectives_of_gloo(ranks, count):
    ranks(count)(differences)


def refused() -> list[str]:
    gloo()
    messages = []
    for call in (
        lambda: dist.all_reduce(torch.ones(2, device="xla"), dist.ReduceOp.BAND),
        lambda: dist.all_reduce(torch.ones(2, dtype=torch.int32, device="xla"), dist.ReduceOp.AVG),
        lambda: dist.recv(torch.ones(2, device="xla")),
        lambda: dist.isend(torch.ones(2, device="xla"), dist.get_rank()),
    ):
        try:
            call()
            messages.append("")
        except (TypeError, ValueError, NotImplementedError) as error:
            messages.append(str(error))
    return messages


def test_what_is_refused(ranks):
    bits, average, anybody, itself = ranks(2)(refused)[0]
    assert "only integers' bits can be combined" in bits
    assert "no average of torch.int32" in average
    assert "recv from any rank" in anybody
    assert "a message to itself" in itself


def methods_of_a_group(group: Any) -> None:
    """Those that torch calls, in a group of one rank."""
    assert isinstance(group, xla_backend.ProcessGroupXla)
    assert (group.getBackendName(), group.size(), group.rank()) == ("xla", 1, 0)
    assert group.group_name == group.getGroupName() != ""
    plain = [torch.arange(1.0, 5.0), torch.tensor([[7.0], [8.0]])]
    x, y = [each.to("xla") for each in plain]

    def places() -> list[torch.Tensor]:
        return [torch.zeros_like(each) for each in (x, y)]

    def same(found: Any) -> None:
        torch.testing.assert_close([each.cpu() for each in found], plain)

    options: Any = dist.AllreduceOptions()
    options.reduceOp = dist.ReduceOp.PRODUCT
    for work in (group.allreduce([x, y]), group.allreduce([x, y], options), group.allreduce_coalesced([x, y], options)):
        assert work.is_completed()
        same([x, y])
    options.reduceOp = dist.ReduceOp.BAND
    for reduce in (group.allreduce, group.allreduce_coalesced):
        with pytest.raises(TypeError, match="only integers' bits"):
            reduce([x], options)
    found = places()
    assert group.allgather([[found[0]], [found[1]]], [x, y]).is_completed()
    same(found)
    found = places()
    assert group.allgather_coalesced([found], [x, y]).is_completed()
    same(found)
    for sizes in (([], []), ([4], [4])):
        exchanged, _ = places()
        assert group.alltoall_base(exchanged, x, *sizes).is_completed()
        assert torch.equal(exchanged.cpu(), plain[0])
    _, other = places()
    assert group.alltoall([other], [y]).is_completed()
    assert torch.equal(other.cpu(), plain[1])
    with pytest.raises(NotImplementedError, match="recv from any rank"):
        group.recv_anysource([x], 0)
    with pytest.raises(NotImplementedError, match="call barrier"):
        group.monitored_barrier()


def test_a_process_without_a_job_is_one_of_its_own():
    xla_backend.register()
    dist.init_process_group("xla", init_method="xla://")
    try:
        x, gathered = torch.ones(3, device="xla"), [torch.empty(3, device="xla")]
        dist.all_reduce(x)
        dist.all_gather(gathered, x)
        assert (dist.get_rank(), dist.get_world_size()) == (0, 1)
        assert gathered[0].tolist() == x.tolist() == [1] * 3
        methods_of_a_group(dist.group.WORLD)
        part = dist.new_group([0])
        assert part.group_name == part.getGroupName() != dist.group.WORLD.group_name
        methods_of_a_group(part)
    finally:
        dist.destroy_process_group()


# ---- in graphs


def traced() -> tuple[torch.Tensor, int]:
    gloo()
    world = dist.group.WORLD

    @torch.compile(backend="openxla", fullgraph=True)
    def function(x: torch.Tensor) -> torch.Tensor:
        y = functional.all_reduce(x * 2, "sum", world)
        z = x.clone()
        dist.all_reduce(z)
        return y.relu() + z + functional.broadcast(x, 1, world)

    x = mine(4).to("xla")
    function(x)
    before = executions()
    return function(x).cpu(), executions() - before


def test_functional_collectives_are_traced(ranks):
    tensors = [
        (torch.randn(4, generator=torch.Generator().manual_seed(rank), dtype=torch.float64) * 4).float()
        for rank in range(2)
    ]
    total = tensors[0] + tensors[1]
    for found, ran in ranks(2)(traced):
        torch.testing.assert_close(found, (total * 2).relu() + total + tensors[1])
        assert ran == 1


# ---- DistributedDataParallel

STEPS = 5


def net() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2))


def batch(step: int) -> torch.Tensor:
    return torch.randn(8, 4, generator=torch.Generator().manual_seed(step))


def steps(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, batches: list[torch.Tensor]
) -> tuple[list[float], list[int]]:
    """A step with this rank's part of each batch: the losses of the whole, and how many executions each took."""
    rank, size = dist.get_rank(), dist.get_world_size()
    losses, ran = [], []
    for whole in batches:
        before = executions()
        loss = model(whole.chunk(size)[rank].to("xla")).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        total = loss.detach() / size
        dist.all_reduce(total)
        lazy_runtime.sync()
        ran.append(executions() - before)
        losses.append(total.item())
    return losses, ran


def trained(gradient_as_bucket_view: bool) -> tuple[list[float], list[int]]:
    gloo()
    model = torch.nn.parallel.DistributedDataParallel(net().to("xla"), gradient_as_bucket_view=gradient_as_bucket_view)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return steps(model, optimizer, [batch(step) for step in range(STEPS)])


@pytest.mark.parametrize("views", [False, True])
def test_distributed_data_parallel(ranks, views):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    expected = []
    for step in range(STEPS):
        loss = model(batch(step)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        expected.append(loss.item())
    for losses, ran in ranks(2)(trained, views):
        assert losses == pytest.approx(expected, abs=1e-5)
        assert ran[-2:] == [1, 1]
