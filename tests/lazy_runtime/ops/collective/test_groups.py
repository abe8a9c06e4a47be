"""Groups of some of the ranks, against torch's gloo backend in the same processes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed

import lazy_runtime
from tests.lazy_runtime.torch_xla.distributed.test_xla_backend import DTYPES, compare, executions, gloo, mine

dist: Any = torch.distributed


def compared(sets: list[list[int]], dtypes: Sequence[torch.dtype]) -> None:
    gloo()
    for ranks in sets:
        groups = dist.new_group(ranks, backend="gloo"), dist.new_group(ranks)
        if dist.get_rank() in ranks:
            compare(ranks, *groups, dtypes)


def test_pairs_of_all(ranks):
    ranks(4)(compared, [[0, 2], [1, 3]], DTYPES)


def test_some_while_the_others_do_nothing(ranks):
    """Of three of four there can be no groups of one size."""
    ranks(4)(compared, [[1, 2], [0, 1, 3]], (torch.float32, torch.uint8))


def rows_and_columns() -> tuple[list[torch.Tensor], int]:
    """Groups that overlap, in one graph; the first rank alone does something more."""
    gloo()
    rank = dist.get_rank()
    mesh = torch.arange(4).view(2, 2)
    rows, _ = dist.new_subgroups(2)
    columns, _ = dist.new_subgroups_by_enumeration(mesh.T.tolist())
    three = dist.new_group([0, 1, 2])
    single = dist.new_group([rank], use_local_synchronization=True)
    before = executions()
    x = mine(3).to("xla")
    if rank == 0:
        x = x * 1.0 + (x * 2).sum() * 0.0
    found = []
    for group in (rows, columns, None, three, rows, single):
        if group is dist.GroupMember.NON_GROUP_MEMBER:
            continue
        dist.all_reduce(x, group=group)
        found.append(x.clone())
    lazy_runtime.sync()
    ran = executions() - before
    dist.barrier(rows)
    return [each.cpu() for each in found], ran


def test_rows_and_columns_of_a_mesh(ranks):
    of = [
        (torch.randn(3, generator=torch.Generator().manual_seed(rank), dtype=torch.float64) * 4).float()
        for rank in range(4)
    ]
    for rank, (found, ran) in enumerate(ranks(4)(rows_and_columns)):
        row = [of[0] + of[1]] * 2 + [of[2] + of[3]] * 2
        total = sum(of)
        wanted = [row[rank], total, 4 * total]
        wanted += [12 * total, (24 if rank < 2 else 16) * total] if rank < 3 else [16 * total]
        if rank == 2:
            wanted[-1] = 16 * total
        torch.testing.assert_close(found, [*wanted, wanted[-1]])
        assert ran == 1


# ---- messages


def messages() -> dict[str, Any]:
    gloo()
    rank, size = dist.get_rank(), 4
    after, before = (rank + 1) % size, (rank - 1) % size
    odd = dist.new_group([1, 3])
    x = mine(5).to("xla")
    found: dict[str, Any] = {"blocking": torch.zeros(5, device="xla")}
    if rank % 2:
        dist.recv(found["blocking"], before)
        dist.send(x, after)
    else:
        dist.send(x, after)
        dist.recv(found["blocking"], before)
    found["batch"] = torch.empty(5, device="xla")
    parts = [dist.P2POp(dist.isend, x * 2, after), dist.P2POp(dist.irecv, found["batch"], before)]
    for work in dist.batch_isend_irecv(parts[::-1] if rank else parts):
        work.wait()
    found["complex"] = torch.zeros(2, dtype=torch.complex64, device="xla")
    found["tags"] = [torch.empty(1, device="xla"), torch.empty(2, dtype=torch.int64, device="xla")]
    if rank in (1, 3):
        other = 1 - dist.get_rank(odd)
        sent = dist.isend(mine(2, dtype=torch.complex64).to("xla"), group=odd, group_dst=other)
        dist.irecv(found["complex"], group=odd, group_src=other)
        assert sent.is_completed()
    if rank == 0:
        works = [dist.isend(x[:1], 2, tag=5), dist.isend(torch.arange(2, device="xla"), 2, tag=3)]
    elif rank == 2:
        works = [dist.irecv(found["tags"][1], 0, tag=3), dist.irecv(found["tags"][0], 0, tag=5)]
    found["sum"] = x.clone()
    dist.all_reduce(found["sum"])  # after what has been begun
    if rank in (0, 2):
        assert all(work.wait() for work in works)
    found["nobody waits"] = torch.zeros(5, device="xla")
    dist.isend(x, after)
    dist.irecv(found["nobody waits"], before)
    ran = executions()
    lazy_runtime.sync()
    found["executions"] = executions() - ran
    objects = [None]
    if rank == 0:
        dist.send_object_list([{"from": 0}], 1)
    elif rank == 1:
        dist.recv_object_list(objects, 0)
    found["object"] = objects
    return {
        name: value.cpu()
        if isinstance(value, torch.Tensor)
        else [getattr(x, "cpu", lambda x=x: x)() for x in value]
        if isinstance(value, list)
        else value
        for name, value in found.items()
    }


def test_messages(ranks):
    def of(rank: int, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        generator = torch.Generator().manual_seed(rank)
        return (torch.randn(shape, generator=generator, dtype=torch.float64) * 4).to(dtype)

    for rank, found in enumerate(ranks(4)(messages)):
        before = (rank - 1) % 4
        assert torch.equal(found["blocking"], of(before, 5))
        assert torch.equal(found["batch"], of(before, 5) * 2)
        assert torch.equal(found["nobody waits"], of(before, 5))
        torch.testing.assert_close(found["sum"], sum(of(each, 5) for each in range(4)))
        if rank % 2:
            assert torch.equal(found["complex"], of(4 - rank, 2, dtype=torch.complex64))
        if rank == 2:
            assert torch.equal(found["tags"][0], of(0, 5)[:1])
            assert found["tags"][1].tolist() == [0, 1]
        assert found["executions"] == 1
        assert found["object"] == ([{"from": 0}] if rank == 1 else [None])
