"""Numbers that do not fit into a tensor's dtype."""

import pytest
import torch

WORDS = "cannot be converted to type uint8_t without overflow"


def index(x):
    return torch.zeros(1, dtype=torch.int64, device=x.device)


CALLS = {
    "fill_": lambda x, n: x.fill_(n),
    "full": lambda x, n: torch.full((3,), n, dtype=x.dtype, device=x.device),
    "full_like": lambda x, n: torch.full_like(x, n),
    "new_full": lambda x, n: x.new_full((3,), n),
    "masked_fill": lambda x, n: x.masked_fill(x == 0, n),
    "index_fill": lambda x, n: x.index_fill(0, index(x), n),
    "scatter": lambda x, n: x.scatter(0, index(x), n),
    "where": lambda x, n: torch.where(x == 0, n, x),
    "setitem": lambda x, n: x.__setitem__(0, n),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
def test_what_does_not_fit_is_refused(call):
    for device in ("cpu", "xla"):
        x = torch.zeros(3, dtype=torch.uint8, device=device)
        call(x, 200)  # a call that is known already looks at the number too
        with pytest.raises(RuntimeError, match=WORDS):
            call(x, 300)


@pytest.mark.parametrize(
    ("dtype", "value"),
    [(torch.uint8, -1), (torch.uint8, 2.5), (torch.bool, 3), (torch.float16, 6e4), (torch.float32, float("inf")),
     (torch.int32, -(2**31)), (torch.int64, 2**62), (torch.complex64, 1j)],
)  # fmt: skip
def test_what_fits(dtype, value):
    expected, result = (torch.zeros(2, dtype=dtype, device=device).fill_(value) for device in ("cpu", "xla"))
    assert torch.equal(result.cpu(), expected)


@pytest.mark.filterwarnings("ignore:where received a uint8 condition")
def test_a_condition_of_bytes():
    mask, x = torch.tensor([0, 1, 255], dtype=torch.uint8), torch.arange(3.0)
    for call in (
        lambda m, x: torch.where(m, x, -x),
        lambda m, x: torch.where(m, 2, x),
        lambda m, x: torch.where(m, 2, 3),
    ):
        assert call(mask.to("xla"), x.to("xla")).cpu().equal(call(mask, x))
