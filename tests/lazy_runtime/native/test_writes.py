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
