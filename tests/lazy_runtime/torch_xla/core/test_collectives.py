"""Collectives on 2 and 4 ranks, against what torch makes of all ranks' tensors in one process."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch

import lazy_runtime
from lazy_runtime.common import metrics
from lazy_runtime.processes import process_job
from lazy_runtime.torch_xla import runtime as xr
from lazy_runtime.torch_xla.core import functions
from lazy_runtime.torch_xla.core import xla_model as xm

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
INTEGERS = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
COMPLEX = (torch.complex64, torch.complex128)
ARITHMETIC = ("sum", "mul", "min", "max")
BITWISE = ("and", "or")
CASES = [
    *((kind, dtype) for kind in ARITHMETIC for dtype in FLOATS + INTEGERS),
    *((kind, dtype) for kind in BITWISE for dtype in INTEGERS),
    *((kind, dtype) for kind in ("sum", "mul") for dtype in COMPLEX),
]

both = pytest.mark.parametrize("count", [2, 4])


def of_rank(rank: int, dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """The same in every process."""
    generator = torch.Generator().manual_seed(rank)
    return (torch.randn(shape, generator=generator, dtype=torch.float64) * 3).abs().to(dtype)


def mine(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    return of_rank(xr.global_ordinal(), dtype, *shape).to("xla")


def executions() -> int:
    return metrics.value("ExecuteComputation")


# ---- reductions


def test_names():
    names = (xm.REDUCE_SUM, xm.REDUCE_MUL, xm.REDUCE_MIN, xm.REDUCE_MAX, xm.REDUCE_AND, xm.REDUCE_OR)
    assert names == (*ARITHMETIC, *BITWISE)


def of_constants() -> tuple[torch.Tensor, torch.Tensor]:
    first = xr.global_ordinal() == 0
    mixed = xm.all_reduce("sum", torch.ones(3, device="xla") if first else torch.full((3,), 5.0, device="xla")).cpu()  # type: ignore[union-attr]
    both = xm.all_gather(torch.eye(2, device="xla") if first else torch.zeros(2, 2, device="xla")).cpu()
    return mixed, both


def test_constants_are_not_the_same_on_all_ranks(ranks):
    for mixed, both in ranks(2)(of_constants):
        assert torch.equal(mixed, torch.full((3,), 6.0))
        assert torch.equal(both, torch.cat([torch.eye(2), torch.zeros(2, 2)]))


def reduced() -> dict[Any, torch.Tensor]:
    found: Any = {case: xm.all_reduce(case[0], mine(case[1], 3, 5)) for case in CASES}
    before = executions()
    lazy_runtime.sync()
    assert executions() == before + 1
    return {case: tensor.cpu() for case, tensor in found.items()}


def expected(kind: str, dtype: torch.dtype, count: int) -> torch.Tensor:
    tensors = [of_rank(rank, dtype, 3, 5) for rank in range(count)]
    join = {
        "sum": torch.logical_or if dtype == torch.bool else torch.add,
        "mul": torch.mul,
        "min": torch.minimum,
        "max": torch.maximum,
        "and": torch.bitwise_and,
        "or": torch.bitwise_or,
    }[kind]
    return functools.reduce(join, tensors)


@both
def test_every_reduction_of_every_dtype(ranks, count):
    results = ranks(count)(reduced)
    for found in results[1:]:
        for case in CASES:  # bit for bit the same on every rank
            assert torch.equal(found[case], results[0][case]), case
    for kind, dtype in CASES:
        # sums of 2 and 4 numbers in another order; of 16 bits, rounded after each addition
        bounds = {"rtol": 2e-2, "atol": 2e-2} if dtype in FLOATS[:2] else {}
        torch.testing.assert_close(results[0][kind, dtype], expected(kind, dtype, count), **bounds)


def in_place_and_scaled() -> tuple[torch.Tensor, ...]:
    tensors = [mine(torch.float32, 3), mine(torch.float64, 2, 2), mine(torch.float32, 4)]
    views = tensors[0].view(3, 1)
    assert xm.all_reduce(xm.REDUCE_SUM, tensors, scale=0.5) is tensors
    groups = xm.all_reduce(xm.REDUCE_MAX, mine(torch.float32, 3), groups=[[0, 1], [2, 3]])
    assert isinstance(groups, torch.Tensor)
    return (*(tensor.cpu() for tensor in tensors), views.cpu(), groups.cpu())


def test_lists_are_written_to_and_groups_reduce_apart(ranks):
    for rank, (*lists, view, grouped) in enumerate(ranks(4)(in_place_and_scaled)):
        for found, (dtype, shape) in zip(
            lists, [(torch.float32, (3,)), (torch.float64, (2, 2)), (torch.float32, (4,))], strict=True
        ):
            whole = sum(of_rank(each, dtype, *shape) for each in range(4))
            torch.testing.assert_close(found, whole * 0.5)
        torch.testing.assert_close(view, lists[0].view(3, 1))
        pair = (0, 1) if rank < 2 else (2, 3)
        torch.testing.assert_close(grouped, torch.maximum(*(of_rank(each, torch.float32, 3) for each in pair)))


# ---- the others


def moved() -> dict[str, torch.Tensor]:
    count, rank = xr.world_size(), xr.global_ordinal()
    x = mine(torch.float32, 2, count * 2)
    sent = [mine(torch.float64, 3), mine(torch.bool, 2), mine(torch.complex64, 2), -0.0 * mine(torch.bfloat16, 2).abs()]
    xm.collective_broadcast(sent, 1)
    output = torch.empty(2 * count, count * 2, device="xla")
    found: dict[str, Any] = {
        "gather": xm.all_gather(x, dim=-1),
        "into": xm.all_gather(x, output=output),
        "scatter": xm.reduce_scatter(xm.REDUCE_SUM, x, 2.0, 1, count),
        "least": xm.reduce_scatter(xm.REDUCE_MIN, x, 1.0, 1, count),
        "exchange": xm.all_to_all(x, 1, 0, count),
        "ring": xm.collective_permute(x, [(each, (each + 1) % count) for each in range(count)]),
        "one": xm.collective_permute(x, [(0, 1)]),
        **{f"sent {number}": tensor for number, tensor in enumerate(sent)},
    }
    assert found["into"] is output
    before = executions()
    lazy_runtime.sync()
    assert executions() == before + 1
    assert xm.mesh_reduce("ranks", {"rank": torch.tensor(rank)}, lambda each: [x["rank"].item() for x in each]) == [
        *range(count)
    ]
    assert xm.rendezvous("here", str(rank).encode()) == [str(each).encode() for each in range(count)]
    return {name: tensor.cpu() for name, tensor in found.items()}


@both
def test_what_moves_tensors(ranks, count):
    results = ranks(count)(moved)
    inputs = [of_rank(rank, torch.float32, 2, count * 2) for rank in range(count)]
    whole = torch.stack(inputs)
    for rank, found in enumerate(results):
        part = slice(2 * rank, 2 * rank + 2)
        assert torch.equal(found["gather"], torch.cat(inputs, 1))
        assert torch.equal(found["into"], torch.cat(inputs))
        torch.testing.assert_close(found["scatter"], whole.sum(0)[:, part] * 2)
        assert torch.equal(found["least"], whole.amin(0)[:, part])
        assert torch.equal(found["exchange"], torch.cat([each[:, part] for each in inputs]))
        assert torch.equal(found["ring"], inputs[rank - 1])
        assert torch.equal(found["one"], inputs[0] if rank == 1 else torch.zeros_like(inputs[0]))
        assert torch.equal(found["sent 0"], of_rank(1, torch.float64, 3))
        assert torch.equal(found["sent 1"], of_rank(1, torch.bool, 2))
        assert torch.equal(found["sent 2"], of_rank(1, torch.complex64, 2))
        assert found["sent 3"].signbit().all()


def gradients() -> list[torch.Tensor]:
    count = xr.world_size()
    x = mine(torch.float64, count, 2).requires_grad_()
    weight = mine(torch.float64, count, 2)
    gathered = functions.all_gather(x).square().sum() * (1 + xr.global_ordinal())
    summed = (functions.all_reduce(xm.REDUCE_SUM, x, scale=0.5) * weight).sum()
    most = (functions.all_reduce(xm.REDUCE_MAX, x) * weight).sum()
    exchanged = (functions.all_to_all(x, 0, 1, count) * weight.reshape(1, -1)).sum()
    return [torch.autograd.grad(y, x)[0].cpu() for y in (gathered, summed, most, exchanged)]


@both
def test_gradients(ranks, count):
    """Those of the sum of what all ranks have computed."""
    inputs = [of_rank(rank, torch.float64, count, 2).requires_grad_() for rank in range(count)]
    weights = [of_rank(rank, torch.float64, count, 2) for rank in range(count)]
    most = functools.reduce(torch.maximum, inputs)
    losses = [
        sum(torch.cat(inputs).square().sum() * (1 + rank) for rank in range(count)),
        sum((sum(inputs) * 0.5 * weight).sum() for weight in weights),
        sum((most * weight).sum() for weight in weights),
        sum(
            (torch.cat([x[rank : rank + 1] for x in inputs], 1) * weight.reshape(1, -1)).sum()
            for rank, weight in enumerate(weights)
        ),
    ]
    for number, loss in enumerate(losses):
        assert isinstance(loss, torch.Tensor)
        wanted = torch.autograd.grad(loss, inputs, retain_graph=True)
        for rank, found in enumerate(ranks(count)(gradients)):
            torch.testing.assert_close(found[number], wanted[rank])


# ---- a training step


def step() -> tuple[Any, ...]:
    torch.manual_seed(xr.global_ordinal())
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 2)).to("xla")
    xm.broadcast_master_param(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    counts = []
    for number in range(4):
        before = executions(), metrics.value("UncachedCompile")
        model(of_rank(10 * number + xr.global_ordinal(), torch.float32, 6, 4).to("xla")).square().mean().backward()
        xm.optimizer_step(optimizer, barrier=True)
        optimizer.zero_grad()
        counts.append((executions() - before[0], metrics.value("UncachedCompile") - before[1]))
    return {name: value.detach().cpu() for name, value in model.named_parameters()}, counts


def forgotten() -> int:
    x = mine(torch.float32, 2)
    if xr.global_ordinal() == 0:
        kept = xm.all_reduce(xm.REDUCE_SUM, x)
    else:
        xm.all_reduce(xm.REDUCE_SUM, x)  # garbage before it is computed
        kept = x
    lazy_runtime.sync(wait=True)
    return len(kept)


def test_a_result_that_one_rank_forgets_is_computed_by_both(ranks):
    assert ranks(2)(forgotten) == [2, 2]


def test_a_step_with_its_reduction_is_one_program(ranks):
    (first, counts), (second, _) = ranks(2)(step)
    assert counts[2:] == [(1, 0), (1, 0)]
    for name in first:  # the statistics of the batch norm are each rank's own
        assert torch.equal(first[name], second[name]), name


def hlo() -> str:
    parameters = [torch.nn.Parameter(mine(torch.float32, size)) for size in (3, 5, 7)]
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    xm.reduce_gradients(torch.optim.SGD(parameters))
    gradients: list[Any] = [parameter.grad for parameter in parameters]
    text = xm.get_stablehlo(gradients)
    lazy_runtime.sync()
    return text


def test_gradients_are_one_reduction(ranks):
    text = ranks(2)(hlo)[0]
    assert text.count('"stablehlo.all_reduce"') == 1


def compiled() -> tuple[Any, ...]:
    @torch.compile(backend="openxla", fullgraph=True)
    def function(x: torch.Tensor) -> torch.Tensor:
        return xm.all_reduce(xm.REDUCE_SUM, x * 2).relu() + 1  # type: ignore[union-attr]

    x = mine(torch.float32, 3)
    function(x)
    before = executions()
    found = function(x)
    return found.cpu(), executions() - before


def test_under_dynamo(ranks):
    for found, ran in ranks(2)(compiled):
        total = of_rank(0, torch.float32, 3) + of_rank(1, torch.float32, 3)
        torch.testing.assert_close(found, (total * 2).relu() + 1)
        assert ran == 1


# ---- alone, and wrong arguments


def test_a_rank_alone_has_everything():
    x = torch.randn(2, 4).to("xla")
    for found in (
        xm.all_reduce(xm.REDUCE_MAX, x),
        xm.all_gather(x),
        xm.reduce_scatter(xm.REDUCE_SUM, x, 1.0, 1, 1),
        xm.all_to_all(x, 0, 1, 1),
        xm.collective_permute(x, [(0, 0)]),
    ):
        assert found is not x
        assert torch.equal(found.cpu(), x.cpu())


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda x: xm.all_reduce("mean", x), ValueError, "reduce_type: expected one of sum, mul"),
        (lambda x: xm.all_reduce("sum", x, groups=[[0], [1, 2]]), ValueError, "groups of one size"),
        (lambda x: xm.all_reduce("sum", x, groups=[[0, 1]]), ValueError, "each of 1 ranks in one group"),
        (lambda x: xm.all_gather(x, dim=2), IndexError, "dim: 2 is no dimension of a tensor of 2"),
        (lambda x: xm.reduce_scatter("sum", x, 1.0, 0, 2), ValueError, "shard_count: expected 1"),
        (lambda x: xm.all_to_all(x, 0, 0, 3), ValueError, "split_count: expected 1"),
        (lambda x: xm.collective_permute(x, [(0, 1)]), ValueError, "expected each target once, of 1 ranks"),
        (lambda x: xm.collective_broadcast([x], 1), ValueError, "root_ordinal: expected one of 1, got 1"),
        (lambda x: functions.all_reduce("mul", x), RuntimeError, "'mul' has no gradient"),
    ],
)
def test_wrong_arguments(call, error, message):
    with pytest.raises(error, match=message):
        call(torch.ones(2, 3, device="xla"))


@pytest.mark.parametrize(("kind", "dtype"), [("and", torch.float32), ("or", torch.complex64), ("min", torch.complex64)])
def test_reductions_that_a_dtype_does_not_have(kind, dtype):
    with pytest.raises(TypeError, match=f"there is no {kind!r} of {dtype}"):
        xm.all_reduce(kind, torch.ones(2, dtype=dtype, device="xla"))


def test_places():
    assert process_job.place() == process_job.ALONE


def by_name() -> dict[str, torch.Tensor]:
    kinds = {"and": xm.REDUCE_AND, "or": xm.REDUCE_OR, "mul": xm.REDUCE_MUL}
    x = torch.tensor([6, 5, 3], device="xla") + xr.global_ordinal()
    return {name: xm.all_reduce(kind, x).cpu() for name, kind in kinds.items()}  # type: ignore[union-attr]


def test_reductions_by_their_names(ranks):
    first, second = torch.tensor([6, 5, 3]), torch.tensor([7, 6, 4])
    for found in ranks(2)(by_name):
        assert torch.equal(found["and"], first & second)
        assert torch.equal(found["or"], first | second)
        assert torch.equal(found["mul"], first * second)
