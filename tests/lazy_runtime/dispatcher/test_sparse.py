"""Sparse COO tensors: the gradients of embeddings, their optimizers, and what can be done with such a tensor."""

from __future__ import annotations

import copy
import io
import operator
import pickle

import pytest
import torch
import torch.nn.functional as F

import lazy_runtime
from lazy_runtime.common import metrics
from lazy_runtime.tensor.xla_tensor import unwrap

INDICES = torch.tensor([[2, 0, 2, 0], [0, 1, 0, 3]])
VALUES = torch.tensor([2.0, -1.0, 3.0, 0.5])
ROWS = torch.tensor([[1, 5], [5, 7], [0, 1]])

UNARY = [
    "abs", "asin", "asinh", "atan", "atanh", "ceil", "deg2rad", "erf", "erfinv", "expm1", "floor", "frac", "isinf",
    "isnan", "isneginf", "isposinf", "log1p", "nan_to_num", "neg", "rad2deg", "relu", "round", "sgn", "sign", "signbit",
    "sin", "sinh", "sqrt", "tan", "tanh", "trunc",
]  # fmt: skip

OPTIMIZERS = {
    "SparseAdam": lambda parameters: torch.optim.SparseAdam(parameters, lr=0.1),
    "SparseAdam, maximize": lambda parameters: torch.optim.SparseAdam(parameters, lr=0.1, maximize=True),
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    "SGD, momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, dampening=0.1),
    "SGD, foreach": lambda parameters: torch.optim.SGD(parameters, lr=0.1, foreach=True, maximize=True),
    "Adagrad": lambda parameters: torch.optim.Adagrad(parameters, lr=0.1),
}

EMBEDDINGS = {
    "embedding": lambda: torch.nn.Embedding(8, 3, sparse=True),
    "embedding, padding": lambda: torch.nn.Embedding(8, 3, sparse=True, padding_idx=5),
    "sum": lambda: torch.nn.EmbeddingBag(8, 3, mode="sum", sparse=True),
    "mean": lambda: torch.nn.EmbeddingBag(8, 3, mode="mean", sparse=True),
    "mean, padding": lambda: torch.nn.EmbeddingBag(8, 3, mode="mean", sparse=True, padding_idx=5),
}


@pytest.fixture(autouse=True)
def unchecked():
    """Torch warns once where nobody has said whether it should look at each index."""
    with torch.sparse.check_sparse_tensor_invariants(False):
        yield


def sparse(device, values=VALUES, size=(3, 4), requires_grad=False):
    made = torch.sparse_coo_tensor(INDICES.to(device), values.to(device), size)
    return made.requires_grad_() if requires_grad else made


def dense(device, dtype=torch.float32):
    return torch.arange(12, dtype=dtype).view(3, 4).to(device)


def close(there, here):
    torch.testing.assert_close(there.detach().cpu(), here.detach().cpu(), equal_nan=True)


def parts(x):
    return [x._indices(), x._values()] if x.is_sparse else [x]


def same(there, here):
    assert there.device.type == "xla"
    assert (there.layout, there.dtype, there.shape) == (here.layout, here.dtype, here.shape)
    if here.is_sparse:
        assert there.is_coalesced() == here.is_coalesced()
        assert (there.sparse_dim(), there.dense_dim()) == (here.sparse_dim(), here.dense_dim())
    for result, expected in zip(parts(there), parts(here), strict=True):
        close(result, expected)


def check(call):
    """`call(device)` gives the same on both."""
    same(call("xla"), call("cpu"))


# ---- training


def train(module, optimizer, device, backwards=1):
    module = copy.deepcopy(module).to(device)
    optimizer = optimizer(module.parameters())
    for step in range(3):
        optimizer.zero_grad()
        for shift in range(backwards):
            (module((ROWS + step + shift).to(device) % 8) - 1).square().mean().backward()
        optimizer.step()
    return module, optimizer


@pytest.mark.parametrize(
    ("embedding", "optimizer"),
    [*(("embedding", name) for name in OPTIMIZERS), *((name, "SparseAdam") for name in list(EMBEDDINGS)[1:])],
)
def test_training(embedding, optimizer):
    module = EMBEDDINGS[embedding]()
    (there, _), (here, _) = (train(module, OPTIMIZERS[optimizer], device) for device in ("xla", "cpu"))
    assert there.weight.grad.is_sparse
    close(there.weight, here.weight)
    close(there.weight.grad.to_dense(), here.weight.grad.to_dense())


@pytest.mark.parametrize("optimizer", ["SparseAdam", "SGD", "Adagrad"])
def test_gradients_of_two_backward_passes(optimizer):
    module = torch.nn.Embedding(8, 3, sparse=True)
    (there, _), (here, _) = (train(module, OPTIMIZERS[optimizer], device, 2) for device in ("xla", "cpu"))
    close(there.weight, here.weight)


def test_a_step_of_sgd_waits_for_nothing():
    module = torch.nn.Embedding(8, 3, sparse=True, device="xla")
    optimizer, rows = torch.optim.SGD(module.parameters(), lr=0.1), ROWS.to("xla")
    lazy_runtime.sync()
    metrics.clear()
    module(rows).sum().backward()
    optimizer.step()
    assert "TransferFromDevice" not in metrics.counters
    assert not [name for name in metrics.counters if name.startswith("aten::")]


def test_sparse_and_dense_gradients_of_one_parameter():
    def gradient(device):
        weight = torch.ones(8, 2, device=device, requires_grad=True)
        for _ in range(2):
            (F.embedding(ROWS.to(device), weight, sparse=True).sum() + weight.square().sum()).backward()
            F.embedding(ROWS.to(device), weight, sparse=True).sum().backward()
        return weight.grad

    check(gradient)


@pytest.mark.parametrize("embedding", EMBEDDINGS)
def test_gradients(embedding):
    module = EMBEDDINGS[embedding]()

    def gradient(device):
        moved = copy.deepcopy(module).to(device)
        moved(ROWS.to(device)).square().sum().backward()
        return moved.weight.grad

    check(gradient)


def test_bags_with_weights():
    def gradient(device):
        weight = torch.ones(8, 2, device=device, requires_grad=True)
        weights = torch.rand(ROWS.shape, generator=torch.Generator().manual_seed(0)).to(device)
        F.embedding_bag(ROWS.to(device), weight, mode="sum", sparse=True, per_sample_weights=weights).sum().backward()
        return weight.grad

    check(gradient)


def test_hooks_and_zero_grad():
    module = torch.nn.Embedding(8, 3, sparse=True, device="xla")
    module.weight.register_hook(lambda gradient: gradient * 2)
    module(ROWS.to("xla")).sum().backward()
    assert module.weight.grad.coalesce().values().cpu().unique().tolist() == [2, 4]
    module.zero_grad(set_to_none=False)
    assert module.weight.grad._nnz() == 0


def test_gradient_scaling():
    def weight(device):
        module = torch.nn.Embedding(8, 3, sparse=True, _weight=torch.ones(8, 3)).to(device)
        optimizer, scaler = torch.optim.SGD(module.parameters(), lr=0.1), torch.amp.GradScaler(device, init_scale=8.0)
        scaler.scale(module(ROWS.to(device)).sum()).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        return module.weight

    close(weight("xla"), weight("cpu"))


def test_the_state_of_an_optimizer_is_saved():
    module, optimizer = train(torch.nn.Embedding(8, 3, sparse=True), OPTIMIZERS["SparseAdam"], "xla")
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    other = torch.optim.SparseAdam(module.parameters())
    other.load_state_dict(torch.load(file))
    state, expected = other.state[module.weight], optimizer.state[module.weight]
    assert state["step"] == 3
    same(state["exp_avg"], expected["exp_avg"].cpu())


# ---- the tensor


def test_what_it_is():
    x = sparse("xla")
    assert type(x) is torch.Tensor
    assert x.is_sparse
    assert x.device == torch.device("xla:0")
    assert (x._nnz(), x.sparse_dim(), x.dense_dim(), x.is_coalesced()) == (4, 2, 0, False)
    text = repr(sparse("cpu")).replace("size=", "device='xla:0', size=")
    assert repr(x).split() == text.split()


@pytest.mark.parametrize(
    "make",
    [
        lambda device: torch.sparse_coo_tensor(INDICES, VALUES, (3, 4), device=device),
        lambda device: torch.sparse_coo_tensor(INDICES.to(device), VALUES.to(device)),
        lambda device: torch.sparse_coo_tensor(INDICES.tolist(), VALUES.tolist(), device=device),
        lambda device: torch.sparse_coo_tensor(INDICES.to(device), VALUES.to(device), (3, 4), check_invariants=True),
        lambda device: torch.sparse_coo_tensor((3, 4), device=device),
        lambda device: torch.zeros_like(sparse(device)),
        lambda device: torch.empty_like(sparse(device)),
        lambda device: dense(device).to_sparse(),
        lambda device: dense(device).to_sparse(1),
        lambda device: sparse("cpu").to(device),
        lambda device: sparse(device).double(),
        lambda device: sparse(device).clone(),
        lambda device: sparse(device).detach(),
        lambda device: torch.sparse_coo_tensor((3, 4), device=device).copy_(sparse("cpu")),
        lambda device: torch.sparse_coo_tensor((1, 1), device=device).resize_as_(sparse(device)),
        lambda device: sparse(device).new(),
        lambda device: sparse(device).new(3, 4),
        lambda device: sparse(device).new(torch.Size((3, 4))),
        lambda device: sparse(device).new(INDICES.to(device), VALUES.to(device)),
        lambda device: sparse(device).new(INDICES.to(device), VALUES.to(device), (3, 4)),
        lambda device: sparse(device).new_zeros(2, 2),
        lambda device: torch.ones(2, device=device).new(INDICES.tolist()),
        lambda device: copy.deepcopy(sparse(device)),
        lambda device: pickle.loads(pickle.dumps(sparse(device))),
        lambda device: pickle.loads(pickle.dumps(sparse(device).coalesce())),
    ],
)
def test_makers(make):
    check(make)


def test_to_the_cpu():
    x = sparse("xla").cpu()
    assert x.device.type == "cpu"
    close(x.to_dense(), sparse("cpu").to_dense())


@pytest.mark.parametrize(
    "values",
    [
        VALUES,
        VALUES.bfloat16(),
        VALUES.to(torch.complex64),
        VALUES.to(torch.int8),
        VALUES > 0,
        VALUES[:, None].expand(4, 2),
        VALUES[:, None].expand(4, 2)[:, :0],
    ],
    ids=["float", "bfloat16", "complex", "int8", "bool", "hybrid", "empty"],
)
@pytest.mark.parametrize("call", [torch.Tensor.coalesce, torch.Tensor.to_dense])
def test_coalesce_and_to_dense(call, values):
    check(lambda device: call(sparse(device, values, (3, 4, *values.shape[1:]))))


def test_without_sparse_dimensions():
    def make(device):
        indices = torch.zeros(0, 3, dtype=torch.int64, device=device)
        return torch.sparse_coo_tensor(indices, torch.ones(3, 2, device=device), (2,))

    check(lambda device: make(device).coalesce())
    check(lambda device: torch.ones(2, device=device).add_(make(device)))
    check(lambda device: torch.ones(2, device=device).sparse_mask(make(device)))


def test_parts_are_shared():
    x = sparse("xla")
    x._values().mul_(2)
    close(x._values(), VALUES * 2)
    with pytest.raises(RuntimeError, match="Cannot get values on an uncoalesced tensor"):
        x.values()
    assert x.coalesce().values().tolist() == [-2, 1, 10]


@pytest.mark.parametrize("name", UNARY)
def test_unary(name):
    check(lambda device: getattr(sparse(device, VALUES / 4), name)())


@pytest.mark.parametrize(
    "call",
    [
        lambda x, device: x * 2,
        lambda x, device: 2.5 * x.long(),
        lambda x, device: x / 2,
        lambda x, device: x.clone().mul_(2),
        lambda x, device: x.clone().mul_(torch.tensor(2.0, device=device)),
        lambda x, device: x.clone().div_(torch.tensor(2.0, device=device)),
        lambda x, device: x.clone().neg_(),
        lambda x, device: x.clone().zero_(),
        lambda x, device: x.pow(2),
        lambda x, device: x.sum(),
        lambda x, device: x.norm(),
        lambda x, device: x.t(),
        lambda x, device: x[0],
        lambda x, device: x.sparse_mask(x.coalesce()),
    ],
)
def test_other_operators(call):
    check(lambda device: call(sparse(device), device))


@pytest.mark.parametrize("function", [operator.add, operator.sub])
def test_sums_of_sparse_tensors(function):
    # the CPU's kernel puts together what has the same index in the same place
    close(function(sparse("xla"), sparse("xla") * 3).to_dense(), function(sparse("cpu"), sparse("cpu") * 3).to_dense())
    check(lambda device: function(sparse(device).coalesce(), sparse(device).coalesce()))
    check(lambda device: function(sparse(device), torch.sparse_coo_tensor((3, 4), device=device)))
    total = sparse("xla")
    for _ in range(5):
        total += sparse("xla")
    assert total._nnz() <= 12  # as many as there are elements
    close(total.to_dense(), 6 * sparse("cpu").to_dense())


# ---- dense tensors


@pytest.mark.parametrize("alpha", [1, 0.5, -2])
@pytest.mark.parametrize("name", ["add", "sub", "add_", "sub_"])
def test_dense_and_sparse(name, alpha):
    check(lambda device: getattr(dense(device), name)(sparse(device), alpha=alpha))
    check(lambda device: getattr(dense(device, torch.bfloat16), name)(sparse(device), alpha=alpha))
    if name.endswith("_") or isinstance(alpha, int):  # torch refuses the others
        check(lambda device: getattr(dense(device, torch.int64), name)(sparse(device).long(), alpha=alpha))


def test_bools():
    check(lambda device: (dense(device) > 8).add_(sparse(device, VALUES > 0)))
    check(lambda device: (dense(device) > 8) + sparse(device, VALUES > 0))


def test_writes_to_views():
    def strided(device):
        memory = torch.ones(20, device=device)
        memory[4:16].view(4, 3).t().add_(sparse(device))
        return memory

    check(strided)
    transposed = torch.ones(4, 3, device="xla").t()
    transposed.add_(sparse("xla"))
    assert transposed.stride() == (1, 3)


def test_sparse_mask():
    for mask in (lambda x: x, torch.Tensor.coalesce):
        check(lambda device, mask=mask: dense(device).sparse_mask(mask(sparse(device))))
    check(lambda device: dense(device).sparse_mask(torch.sparse_coo_tensor((3, 4), device=device)))


def test_multi_tensor_operators():
    tensors = [dense("xla"), sparse("xla")]
    others = [sparse("xla"), sparse("xla")]
    torch._foreach_add_(tensors, others)
    torch._foreach_mul_(tensors, 2.0)
    torch._foreach_neg_(tensors)
    close(tensors[0], -2 * (dense("cpu") + sparse("cpu")))
    close(tensors[1].to_dense(), -4 * sparse("cpu").to_dense())


# ---- autograd


@pytest.mark.parametrize(
    "call",
    [
        lambda x, device: x.to_dense().square(),
        lambda x, device: x.coalesce().to_dense().square(),
        lambda x, device: (dense(device) + x).square(),
        lambda x, device: dense(device).mul(1).add_(x, alpha=3).square(),
        lambda x, device: (x * 2).to_dense().square(),
    ],
)
def test_gradients_of_sparse_leaves(call):
    def gradient(device):
        x = sparse(device, requires_grad=True)
        call(x, device).sum().backward()
        return x.grad.to_dense()

    check(gradient)


def test_gradients_of_dense_leaves():
    def of_values(device):
        values = VALUES.to(device, copy=True).requires_grad_()
        (sparse(device, values).to_dense() * dense(device)).sum().backward()
        return values.grad

    def of_a_mask(device):
        x = dense(device).requires_grad_()
        x.sparse_mask(sparse(device).coalesce()).to_dense().square().sum().backward()
        return x.grad

    def of_a_sum(device):
        x = dense(device).requires_grad_()
        (x * 2).add_(sparse(device)).square().sum().backward()
        return x.grad

    def of_to_sparse(device):
        x = dense(device).requires_grad_()
        x.to_sparse().to_dense().square().sum().backward()
        return x.grad

    for gradient in (of_values, of_a_mask, of_a_sum, of_to_sparse):
        check(gradient)


# ---- what cannot be


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda x, y: torch.mm(x, y.t()), "aten::mm"),
        (lambda x, y: torch.where(y > 0, y, x), r"aten::where\.self"),
        (lambda x, y: x * y, r"aten::mul\.Tensor"),
        (lambda x, y: y.mul_(x), r"aten::mul_\.Tensor"),
        (lambda x, y: x * x, r"aten::mul\.Tensor"),
        (lambda x, y: torch.exp(x), "aten::exp"),
        (lambda x, y: torch.cat([x, y]), "aten::cat"),
        (lambda x, y: x.index_select(0, torch.tensor([0], device="xla")), "aten::index_select"),
        (lambda x, y: x.clamp_(0, 1), r"aten::clamp_?(\.out)?"),
        (lambda x, y: x.ldexp_(y), "aten::ldexp_"),
        (lambda x, y: torch.linalg.vector_norm(x), "aten::linalg_vector_norm"),
        (lambda x, y: torch._foreach_neg([x, y]), "aten::_foreach_neg"),
        (lambda x, y: x.to_sparse_csr(), "aten::_to_sparse_csr"),
    ],
)
def test_operators_without_a_kernel(call, name):
    with pytest.raises(NotImplementedError, match=rf"^{name} is not implemented for sparse.*x\.to_dense\(\)"):
        call(sparse("xla"), dense("xla"))


@pytest.mark.parametrize(
    "call",
    [
        lambda device: sparse(device) + dense(device),
        lambda device: sparse(device) + 1,
        lambda device: sparse(device).add_(1),
        lambda device: dense(device).add_(sparse(device, size=(4, 4))),
        lambda device: sparse(device) + sparse(device, size=(4, 4)),
        lambda device: sparse(device) + dense(device).to_sparse(1),
        lambda device: dense(device, torch.int64).add_(sparse(device)),
        lambda device: sparse(device).long().add_(sparse(device)),
        lambda device: torch.ones(2, 2, device=device).sparse_mask(sparse(device)),
        lambda device: sparse(device).pow(0),
        lambda device: torch.add(sparse(device).long(), sparse(device).long(), alpha=0.5),
        lambda device: torch.add(dense(device, torch.int64), sparse(device).long(), alpha=0.5),
        lambda device: sparse(device, VALUES > 0) - sparse(device, VALUES > 0),
        lambda device: (dense(device) > 0).sub_(sparse(device, VALUES > 0)),
        lambda device: torch.sparse_coo_tensor(INDICES.to(device), VALUES.to(device), (2, 4), check_invariants=True),
    ],
)
def test_errors_are_torchs(call):
    with pytest.raises(RuntimeError) as expected:
        call("cpu")
    with pytest.raises(RuntimeError) as error:
        call("xla")
    assert str(error.value) == str(expected.value)


def test_devices_do_not_mix():
    for x, y in ((dense("xla"), sparse("cpu")), (dense("cpu"), sparse("xla"))):
        with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
            x.add_(y)


def test_functions_that_take_xla_tensors():
    with pytest.raises(NotImplementedError, match=r"only dense ones are taken: convert it \(`x.to_dense\(\)`\)"):
        unwrap(sparse("xla"))


def test_inference_mode():
    x = sparse("xla")
    with torch.inference_mode():
        close(x.coalesce().values(), sparse("cpu").coalesce().values())
        close((x * 2).to_dense(), 2 * sparse("cpu").to_dense())
        with pytest.raises(NotImplementedError, match=r"sparse tensor, which .* in inference mode.*x\.to_dense\(\)"):
            sparse("xla")


@pytest.mark.parametrize("layer", [torch.nn.Embedding, torch.nn.EmbeddingBag])
def test_a_compiled_function(layer):
    module = layer(8, 3, sparse=True, device="xla")
    compiled = torch.compile(module, backend="openxla")
    with pytest.raises(NotImplementedError, match=r"sparse tensor, which .* in a compiled function.*sparse=False"):
        compiled(ROWS.to("xla")).sum().backward()
