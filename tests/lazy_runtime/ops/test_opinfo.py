"""Torch's own samples (OpInfo) of the operators that models and optimizers are made of: xla against the CPU."""

import itertools

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_leaves, tree_map

SAMPLES = 5  # per entry; the later ones repeat the earlier with other sizes
SAMPLES_OF_OTHER_DTYPES = 1

#: float32 and float64 sums in another order: a few units in the last place of the largest term
TOLERANCE = {torch.float32: 2e-4, torch.float64: 1e-10}

NAMES = [
    "abs", "add", "addbmm", "addcdiv", "addcmul", "addmm", "addmv", "addr", "all", "amax", "amin", "any", "argmax",
    "argmin", "as_strided", "atan2", "baddbmm", "bmm", "cat", "clamp", "clone", "complex", "constant_pad_nd", "cos",
    "cumsum", "diagonal", "div", "dot", "eq", "erf", "exp", "expand", "flip", "floor_divide", "fmod", "gather", "ge",
    "gt", "index_add", "index_put", "index_select", "isnan", "le", "lerp", "linalg.vector_norm", "log", "log1p",
    "logical_and", "logical_not", "logsumexp", "lt", "masked_fill", "max", "maximum", "mean", "min", "minimum", "mm",
    "mul", "mv", "narrow", "ne", "neg", "nn.functional.adaptive_avg_pool2d", "nn.functional.avg_pool2d",
    "nn.functional.batch_norm", "nn.functional.binary_cross_entropy", "nn.functional.conv1d", "nn.functional.conv2d",
    "nn.functional.conv3d", "nn.functional.conv_transpose2d", "nn.functional.cross_entropy", "nn.functional.elu",
    "nn.functional.embedding", "nn.functional.gelu", "nn.functional.glu", "nn.functional.group_norm",
    "nn.functional.hardsigmoid", "nn.functional.hardswish", "nn.functional.hardtanh", "nn.functional.layer_norm",
    "nn.functional.leaky_relu", "nn.functional.linear", "nn.functional.logsigmoid", "nn.functional.max_pool2d",
    "nn.functional.mish", "nn.functional.mse_loss", "nn.functional.nll_loss", "nn.functional.pad",
    "nn.functional.relu", "nn.functional.relu6", "nn.functional.scaled_dot_product_attention", "nn.functional.silu",
    "nn.functional.smooth_l1_loss", "nn.functional.softplus", "permute", "pow", "prod", "reciprocal", "remainder",
    "repeat", "reshape", "rsqrt", "scatter", "scatter_add", "select", "select_scatter", "sigmoid", "sign", "sin",
    "slice", "slice_scatter", "softmax", "log_softmax", "sort", "split", "sqrt", "squeeze", "stack", "std", "sub",
    "sum", "t", "tanh", "topk", "transpose", "tril", "triu", "unbind", "unfold", "unsqueeze", "var", "var_mean",
    "view", "where",
]  # fmt: skip

#: entry → why its gradients do not pass yet
EXPECTED_FAILURES = {
    "as_strided_partial_views": "as_strided beyond a leaf acts on what the leaf is a view of, which needs no gradient",
}

ENTRIES = [entry for entry in op_db if entry.name in NAMES and torch.float32 in entry.supported_dtypes("cpu")]


def _id(entry):
    return entry.formatted_name


def arguments(sample, device):
    """The sample's arguments on a device, all of them fresh: samples share tensors, whose gradients would add up."""

    def move(x):
        if isinstance(x, torch.Tensor):
            return _placed(x.detach(), device).requires_grad_(x.requires_grad)
        return torch.device(device) if x == torch.device("cpu") else device if x == "cpu" else x

    return tree_map(move, ([sample.input, *sample.args], sample.kwargs))


def _placed(x, device):
    """A copy of `x`; one of a view has what lies around it in memory too, which `as_strided` can reach."""
    size = x.untyped_storage().nbytes() // x.element_size()
    if size == x.numel():
        return x.to(device, copy=True)
    memory = x.as_strided((size,), (1,), 0).to(device, copy=True)
    return memory.as_strided(x.size(), x.stride(), x.storage_offset())


def is_random(kwargs):
    return bool(kwargs.get("dropout_p"))


@pytest.mark.parametrize("entry", ENTRIES, ids=_id)
def test_forward_and_backward(entry, request):
    if _id(entry) in EXPECTED_FAILURES:
        request.applymarker(pytest.mark.xfail(reason=EXPECTED_FAILURES[_id(entry)], strict=True))
    gradients = entry.supports_autograd
    samples = list(entry.sample_inputs("cpu", torch.float32, requires_grad=gradients))
    for sample in samples[:SAMPLES]:
        (args, kwargs), (xla_args, xla_kwargs) = arguments(sample, "cpu"), arguments(sample, "xla")
        if is_random(kwargs):
            continue
        expected, result = entry(*args, **kwargs), entry(*xla_args, **xla_kwargs)
        compare(expected, result, sample)
        if gradients:
            backward(expected)
            backward(result)
            compare([x.grad for x in leaves((args, kwargs))], [x.grad for x in leaves((xla_args, xla_kwargs))], sample)


@pytest.mark.filterwarnings("ignore:The reduce argument of torch.scatter:UserWarning")
@pytest.mark.parametrize("dtype", [torch.float64, torch.int64], ids=str)
@pytest.mark.parametrize("entry", ENTRIES, ids=_id)
def test_forward_in_other_dtypes(entry, dtype):
    if dtype not in entry.supported_dtypes("cpu"):
        return  # torch has no such kernel to compare with
    for sample in itertools.islice(entry.sample_inputs("cpu", dtype), SAMPLES_OF_OTHER_DTYPES):
        (args, kwargs), (xla_args, xla_kwargs) = arguments(sample, "cpu"), arguments(sample, "xla")
        if is_random(kwargs):
            continue
        expected, result = entry(*args, **kwargs), entry(*xla_args, **xla_kwargs)
        if entry.name == "topk" and dtype == torch.int64:  # which of equal elements it finds is unspecified
            expected, result = expected.values, result.values
        compare(expected, result, sample)


def leaves(tree):
    return [x for x in tree_leaves(tree) if isinstance(x, torch.Tensor) and x.requires_grad and x.is_leaf]


def backward(outputs):
    """Backward from every differentiable output, with gradients that are not all alike."""
    outputs = [x for x in tree_leaves(outputs) if isinstance(x, torch.Tensor) and x.requires_grad]
    if outputs:
        # made on the CPU for both
        grads = [torch.linspace(0.5, 1.5, x.numel()).reshape(x.shape).to(x.device, x.dtype) for x in outputs]
        torch.autograd.backward(outputs, grads)


def compare(expected, result, sample):
    expected, result = tree_leaves(expected), tree_leaves(result)
    assert len(expected) == len(result)
    for x, y in zip(expected, result, strict=True):
        if not isinstance(x, torch.Tensor):
            assert x == y, sample.summary()
            continue
        bound = TOLERANCE.get(x.dtype, 0)
        torch.testing.assert_close(
            y.detach().cpu(),
            x.detach(),
            rtol=bound,
            atol=bound,
            equal_nan=True,
            msg=lambda m: f"{m}\n{sample.summary()}",
        )


def test_every_name_is_an_entry():
    assert set(NAMES) <= {entry.name for entry in op_db}
