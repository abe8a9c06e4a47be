"""Operators that write: what they refuse of the tensors that they write to."""

import pytest
import torch


def places(x):
    return torch.tensor([1, 2, 3, 0, 1, 2], device=x.device)


READ_ELSEWHERE = {
    "take": lambda x: torch.take(x, places(x), out=x),
    "gather": lambda x: torch.gather(x, 0, places(x), out=x),
    "masked_select": lambda x: torch.masked_select(x, x >= 0, out=x),
    "kthvalue": lambda x: torch.kthvalue(x, 1, out=(x, places(x)[0])),
    "cat": lambda x: torch.cat([x[:2], x[2:]], out=x),
    "index_add_": lambda x: x.index_add_(0, places(x), x),
    "index_put_": lambda x: x.index_put_((places(x),), x),
    "scatter_": lambda x: x.scatter_(0, places(x), x),
}


@pytest.mark.parametrize("call", READ_ELSEWHERE.values(), ids=READ_ELSEWHERE.keys())
def test_operators_that_read_elsewhere_refuse_their_operand_as_the_result(call):
    for device in ("cpu", "xla"):
        x = torch.arange(6.0, device=device)
        with pytest.raises(RuntimeError, match="some elements of the input tensor and the written-to tensor refer"):
            call(x)
        assert torch.equal(x.cpu(), torch.arange(6.0))


def test_elementwise_operators_take_their_operand_as_the_result():
    x = torch.arange(6.0, device="xla")
    assert torch.equal(torch.add(x, x, out=x).cpu(), 2 * torch.arange(6.0))


OTHER_DTYPES = {
    "gather": lambda x, out: torch.gather(x, 0, torch.zeros(2, 2, dtype=torch.int64, device=x.device), out=out),
    "mm": lambda x, out: torch.mm(x, x, out=out),
    "cumsum": lambda x, out: torch.cumsum(x, 0, out=out),
    "sin": lambda x, out: torch.sin(x, out=out),
    "eq": lambda x, out: torch.eq(x, 1, out=out),
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64])
@pytest.mark.parametrize("call", OTHER_DTYPES.values(), ids=OTHER_DTYPES.keys())
def test_out_of_another_dtype(call, dtype):
    def outcome(device):
        x, out = torch.ones(2, 2, device=device), torch.zeros(2, 2, dtype=dtype, device=device)
        try:
            return call(x, out).cpu()
        except RuntimeError as error:
            return str(error)

    expected, result = outcome("cpu"), outcome("xla")
    assert torch.allclose(result, expected) if isinstance(expected, torch.Tensor) else result == expected


def test_out_of_a_composite_operator():
    x, out = torch.ones(2, 2, device="xla"), torch.empty(2, 2, device="xla")
    assert torch.matmul(x, x, out=out) is out
    assert torch.equal(out.cpu(), torch.full((2, 2), 2.0))


OTHER_DTYPES = {
    "isposinf": lambda x: torch.isposinf(x, out=torch.empty_like(x)),
    "signbit": lambda x: torch.signbit(x, out=torch.empty_like(x)),
    "multinomial": lambda x: torch.multinomial(x, 2, out=torch.empty_like(x)),
    "normal": lambda x: torch.normal(x, x, out=torch.empty_like(x, dtype=torch.int64)),
    "normal of other sizes": lambda x: torch.normal(x, 1.0, out=x.new_empty(5)),
    "the negative of bools": lambda x: (x > 0).expand(2, 3).neg_(),
}


@pytest.mark.parametrize("call", OTHER_DTYPES.values(), ids=OTHER_DTYPES.keys())
def test_results_that_do_not_fit_their_place(call):
    errors = []
    for device in ("cpu", "xla"):
        torch.manual_seed(0)
        with pytest.raises(RuntimeError) as error:
            call(torch.ones(3, device=device))
        errors.append((error.type, str(error.value)))
        assert torch.rand(1).item() == torch.rand(1, generator=torch.Generator().manual_seed(0)).item()
    assert errors[0] == errors[1]


def test_normal_has_its_tensor_broadcast_to_out():
    for device in ("cpu", "xla"):
        out = torch.empty(2, 3, device=device)
        assert torch.normal(torch.arange(3.0, device=device), 0.0, out=out).tolist() == [[0.0, 1.0, 2.0]] * 2


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
@pytest.mark.parametrize("size", [(0,), (5,), (2, 2)])
def test_strides_of_what_was_resized(size):
    strides = []
    for device in ("cpu", "xla"):
        out = torch.empty(size, device=device)
        x = torch.cholesky_solve(torch.eye(3, device=device), torch.eye(3, device=device), out=out)
        assert x is out
        strides.append((out.stride(), out.t().contiguous().tolist()))
    assert strides[0] == strides[1]


def _resized_to_a_row(device):
    memory = torch.zeros(4, 4, device=device)
    out = memory[1]
    torch.mm(torch.ones(2, 3, device=device), torch.ones(3, 2, device=device), out=out)
    return out, memory


def _with_one_of_two_resized(device):
    values, places = torch.zeros(8, device=device), torch.zeros(8, dtype=torch.int64, device=device)
    torch.sort(torch.tensor([3.0, 1.0, 2.0], device=device), out=(values[:1], places[2:5]))
    return values, places


def _under_its_view(device):
    out = torch.arange(6.0, device=device)
    view = out[1:]
    torch.add(torch.ones(3, device=device), 1, out=out)
    return out, view


@pytest.mark.parametrize("call", [_resized_to_a_row, _with_one_of_two_resized, _under_its_view])
@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
def test_out_is_resized_within_its_memory(call):
    results, expected = call("xla"), call("cpu")
    for result, wanted in zip(results, expected, strict=True):
        assert torch.equal(result.cpu(), wanted)
        assert result.stride() == wanted.stride()


@pytest.mark.parametrize("part", [slice(0, 2), slice(None)], ids=["view", "whole"])
@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
def test_out_does_not_grow_memory_that_others_show(part):
    memory = torch.arange(6.0, device="xla")
    view, out = memory[3:], memory[part]
    with pytest.raises(NotImplementedError, match="which cannot grow under them"):
        torch.add(torch.ones(8, device="xla"), 1, out=out)
    assert (memory.tolist(), view.tolist()) == ([0, 1, 2, 3, 4, 5], [3, 4, 5])


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
def test_a_result_that_grows_over_what_it_is_computed_of():
    for device in ("cpu", "xla"):
        index = torch.tensor([2, 1, 0], device=device)
        with pytest.raises(RuntimeError, match="some elements of the input tensor and the written-to tensor refer"):
            torch.gather(index.clone(), 0, index[1:], out=index[:1])
