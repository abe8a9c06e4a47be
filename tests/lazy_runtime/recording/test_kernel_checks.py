"""What torch's CPU kernels refuse and its meta kernels do not, lazily and compiled."""

import pytest
import torch
import torch.nn.functional as F

from lazy_runtime.recording import dispatch


def floats(*shape):
    return torch.ones(shape)


def integers(*shape):
    return torch.ones(shape, dtype=torch.int64)


REFUSED = {
    "long @ float": lambda d: integers(3, 3).to(d) @ floats(3, 3).to(d),
    "linear of integers": lambda d: F.linear(integers(2, 3).to(d), floats(4, 3).to(d)),
    "addmm": lambda d: torch.addmm(floats(3).to(d), integers(3, 3).to(d), floats(3, 3).to(d)),
    "mv": lambda d: torch.mv(floats(3, 3).to(d), floats(3).double().to(d)),
    "conv1d": lambda d: F.conv1d(floats(1, 2, 5).double().to(d), floats(2, 2, 3).to(d)),
    "index_copy": lambda d: floats(3, 2).to(d).index_copy(0, integers(1).to(d), integers(1, 2).to(d)),
    "cross_entropy": lambda d: F.cross_entropy(floats(2, 3).to(d), integers(2).int().to(d)),
    "bilinear of integers": lambda d: F.interpolate(integers(1, 1, 4, 4).to(d), (2, 2), mode="bilinear"),
    "bicubic of integers": lambda d: F.interpolate(integers(1, 1, 4, 4).int().to(d), (2, 2), mode="bicubic"),
    "grid_sample": lambda d: F.grid_sample(integers(1, 1, 4, 4).to(d), integers(1, 2, 2, 2).to(d), align_corners=False),
    "reflect": lambda d: F.pad(floats(1, 1, 4, 4).to(d), (5, 0), mode="reflect"),
    "reflect of many": lambda d: F.pad(floats(64, 64, 16, 16).to(d), (16, 0), mode="reflect"),
    "smooth_l1_loss": lambda d: F.smooth_l1_loss(floats(3).to(d), floats(3).to(d), beta=-1.0),
    "huber_loss": lambda d: F.huber_loss(floats(3).to(d), floats(3).to(d), delta=-1.0),
    "celu": lambda d: F.celu(floats(3).to(d), 0.0),
    "celu of integers": lambda d: F.celu(integers(3).to(d)),
    "convolution of a long bias": lambda d: F.conv2d(*(floats(8, 8, 9, 9).to(d),) * 2, floats(9).to(d)),
    "transposed convolution of a number": lambda d: F.conv_transpose1d(
        floats(64, 64, 32).to(d), floats(64, 8, 3).to(d), floats().to(d), groups=2
    ),
    "softmax's gradient of two dtypes": lambda d: torch.ops.aten._softmax_backward_data(
        floats(3).half().to(d), floats(3).to(d), 0, torch.float32
    ),
    "softmax's gradient of two sizes": lambda d: torch.ops.aten._softmax_backward_data(
        floats().to(d), floats(3).to(d), 0, torch.float32
    ),
    "max_pool2d's gradient of integers": lambda d: torch.ops.aten.max_pool2d_with_indices_backward(
        *(integers(1, 4, 4).to(d),) * 2, [1, 1], [1, 1], [0, 0], [1, 1], False, integers(1, 4, 4).to(d)
    ),
    "batch_norm of integers with parameters of floats": lambda d: F.batch_norm(
        integers(2, 3).to(d), floats(3).to(d), floats(3).to(d)
    ),
    "linear of three dimensions and a bias of doubles": lambda d: F.linear(
        floats(2, 3, 4).to(d), floats(5, 4).to(d), floats(5).double().to(d)
    ),
    "linear of a vector and a bias of two dimensions": lambda d: F.linear(
        floats(4).to(d), floats(5, 4).to(d), floats(2, 5).to(d)
    ),
    **{
        f"{name} of {dtype}": lambda d, name=name, dtype=dtype: getattr(torch.linalg, name)(
            torch.eye(3, dtype=dtype).to(d)
        )
        for name in ("cholesky", "det", "eigh", "eigvalsh", "lu", "lu_factor", "qr", "slogdet", "svd", "svdvals")
        for dtype in (torch.float16, torch.bfloat16)
    },
    "solve of halves": lambda d: torch.linalg.solve(*(torch.eye(3, dtype=torch.float16).to(d),) * 2),
    "householder_product of halves": lambda d: torch.linalg.householder_product(
        torch.eye(3, dtype=torch.float16).to(d), torch.ones(3, dtype=torch.float16).to(d)
    ),
    "ctc_loss of integers": lambda d: torch.ops.aten._ctc_loss(integers(2, 1, 3).to(d), integers(1, 1).to(d), [2], [1]),
    "ctc_loss of lengths that are floats": lambda d: torch.ops.aten._ctc_loss.Tensor(
        floats(2, 1, 3).to(d), integers(1, 1).to(d), floats(1).to(d), floats(1).to(d)
    ),
    "searchsorted in a number": lambda d: torch.searchsorted(floats().to(d), 2.0),
    "batch_norm without statistics": lambda d: F.batch_norm(floats(1, 2, 3).to(d), None, None),
    "lu_factor of integers": lambda d: torch.linalg.lu_factor(integers(3, 3).to(d)),
    "linear of many integers": lambda d: F.linear(integers(100, 300).to(d), floats(400, 300).to(d)),
}


@pytest.mark.parametrize("call", REFUSED.values(), ids=REFUSED.keys())
def test_refused_as_by_the_cpu(call):
    with pytest.raises(Exception) as expected:  # noqa: PT011  whatever it is
        call("cpu")
    with pytest.raises(type(expected.value)) as raised:
        call("xla")
    assert str(raised.value) == str(expected.value)


@pytest.mark.parametrize("name", ["long @ float", "celu of integers", "index_copy", "grid_sample"])
def test_refused_in_a_compiled_function(name):
    torch._dynamo.reset()
    compiled = torch.compile(REFUSED[name], backend="openxla")
    with pytest.raises(Exception):  # noqa: B017, PT011  Dynamo has its own
        compiled("xla")


def test_sixteen_bits_that_the_cpu_has_no_kernel_of():
    """XLA has."""
    factor = torch.linalg.cholesky(torch.eye(2)).half()
    with pytest.raises(NotImplementedError):
        torch.cholesky_inverse(factor)
    assert torch.cholesky_inverse(factor.to("xla")).cpu().float().equal(torch.eye(2))


def test_random_numbers_are_not_used_up():
    """A call draws its seed from torch's generator, and the check of a new call draws nothing more."""

    def drawn() -> torch.Tensor:
        torch.manual_seed(0)
        torch.bernoulli(torch.full((3, 7, 11), 0.5, device="xla"))
        return torch.rand(1)

    of_new_call = drawn()
    assert torch.equal(of_new_call, drawn())


def test_calls_of_decomposed_operators_are_forgotten(monkeypatch):
    monkeypatch.setattr(dispatch, "_MOST_DECOMPOSED", 3)
    dispatch._decomposed.clear()
    for size in range(1, 8):
        torch.celu(torch.ones(size, device="xla"))
        assert 0 < len(dispatch._decomposed) <= 3
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        torch.celu(torch.ones(2, device="xla"), 0.0)


def test_what_is_not_refused():
    """Stand-ins are of ones and zeros, which must not be what an operator refuses."""
    x = torch.arange(1, 5, device="xla")
    for function in (torch.fmod, torch.remainder, torch.floor_divide):
        assert function(x, x).cpu().tolist() == function(x.cpu(), x.cpu()).tolist()
    floats = torch.arange(1.0, 5, device="xla")
    floats[torch.tensor([True, False, True, False], device="xla")] = torch.ones(2, device="xla")
    assert floats.tolist() == [1, 2, 1, 4]
    assert torch.linalg.inv(torch.eye(3, device="xla")).cpu().equal(torch.eye(3))
    assert torch.gather(floats, 0, torch.tensor([3], device="xla")).item() == 4


def test_results_without_elements():
    """Numpy's functions refuse some of these."""
    for call in (
        lambda d: F.adaptive_max_pool1d(torch.ones(2, 3, 4, device=d), 0),
        lambda d: torch.linalg.eigvalsh(torch.ones(2, 0, 0, device=d)),
        lambda d: torch.linalg.eigvalsh(torch.ones(0, 3, 3, device=d, dtype=torch.bfloat16)),
        lambda d: torch.linalg.lu_factor(torch.ones(0, 0, device=d, dtype=torch.float16))[0],
    ):
        assert call("xla").shape == call("cpu").shape
        assert call("xla").cpu().numel() == 0


def test_linear_in_inference_mode():
    with torch.inference_mode(), pytest.raises(RuntimeError, match="must have the same dtype"):
        F.linear(torch.ones(2, 3, 4, device="xla"), torch.ones(5, 4, device="xla"), torch.ones(5, device="xla").half())


def test_the_dtype_of_a_bias_that_torch_takes():
    """A matrix times a vector, and then a sum."""
    x = torch.ones(4, 3, 2).mT
    for bias in (torch.ones(5), torch.ones(1)):
        expected = F.linear(x, torch.ones(5, 3), bias)
        assert F.linear(x.to("xla"), torch.ones(5, 3, device="xla"), bias.to("xla")).cpu().equal(expected)
