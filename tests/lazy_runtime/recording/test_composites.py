"""Composite operators that torch takes apart unsuitably, and those that it does not functionalize."""

import pytest
import torch


@pytest.mark.parametrize(("tolerance", "rank"), [({}, 2), ({"tol": 0.5}, 1), ({"atol": 0.5}, 1)])
def test_matrix_rank_goes_into_out(tolerance, rank):
    x = torch.diag(torch.tensor([1.0, 0.1, 0.0])).to("xla")
    out = torch.zeros((), dtype=torch.int64, device="xla")
    assert torch.linalg.matrix_rank(x, **tolerance, out=out) is out
    assert out.item() == rank


def test_polygamma_in_place():
    x = torch.tensor([0.5, 1.5, 3.0])
    on_xla = x.to("xla")
    assert on_xla.polygamma_(1) is on_xla
    torch.testing.assert_close(on_xla.cpu(), torch.polygamma(1, x))


def test_as_strided_in_place_within_a_compiled_function():
    x = torch.arange(5.0)

    def median(x):  # unsqueezes in place
        return torch.quantile(x, 0.5)

    result = torch.compile(median, backend="openxla", fullgraph=True)(x.to("xla"))
    torch.testing.assert_close(result.cpu(), torch.quantile(x, 0.5))


def test_singular_matrices_raise_within_a_compiled_function():
    inverse = torch.compile(torch.linalg.inv, backend="openxla", fullgraph=True)
    torch.testing.assert_close(inverse(2 * torch.eye(2, device="xla")).cpu(), 0.5 * torch.eye(2))
    with pytest.raises(torch.linalg.LinAlgError, match="singular"):
        inverse(torch.zeros(2, 2, device="xla")).cpu()


def test_gradients_of_what_may_raise_within_a_compiled_function():
    x = torch.tensor([[2.0, 1.0], [0.0, 3.0]])
    gradients = []
    for device, wrap in (("cpu", lambda f: f), ("xla", lambda f: torch.compile(f, backend="openxla", fullgraph=True))):
        leaf = x.clone().to(device).requires_grad_()
        wrap(lambda x: torch.linalg.eigvals(x).abs())(leaf).sum().backward()
        gradients.append(leaf.grad.cpu())
    torch.testing.assert_close(gradients[1], gradients[0])


def test_matmul_into_another_order_of_memory():
    x, y = torch.randn(5, 4, 3), torch.randn(1, 3, 5)
    out = torch.empty(5, 4, 5, device="xla").transpose(0, 2)
    strides = out.stride()
    assert torch.matmul(x.to("xla"), y.to("xla"), out=out) is out
    assert out.stride() == strides
    torch.testing.assert_close(out.cpu(), torch.matmul(x, y))
    with pytest.raises(RuntimeError, match="automatic differentiation"):
        torch.matmul(x.to("xla").requires_grad_(), y.to("xla"), out=out)


def test_a_copy_of_what_is_no_view():
    x = torch.arange(6.0).reshape(2, 3)
    assert torch.view_copy(x.to("xla").mT, (6,)).cpu().equal(torch.view_copy(x.mT, (6,)))
    with pytest.raises(RuntimeError, match="invalid for input of size"):
        torch.view_copy(x.to("xla").mT, (5,))
