"""Torch's own samples (OpInfo) of the operators that models and optimizers are made of: xla against the CPU."""

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_leaves, tree_map

SAMPLES = 8  # per entry; the later ones repeat the earlier with other sizes

NAMES = """
abs add addbmm addcdiv addcmul addmm addmv addr all amax amin any argmax argmin as_strided atan2 baddbmm bmm cat clamp
clone complex constant_pad_nd cos cumsum diagonal div dot eq erf exp expand flip floor_divide fmod gather ge gt
index_add index_put index_select isnan le lerp linalg.vector_norm log log1p logical_and logical_not logsumexp lt
masked_fill max maximum mean min minimum mm mul mv narrow ne neg nn.functional.adaptive_avg_pool2d
nn.functional.avg_pool2d nn.functional.batch_norm nn.functional.binary_cross_entropy nn.functional.conv1d
nn.functional.conv2d nn.functional.conv3d nn.functional.conv_transpose2d nn.functional.cross_entropy nn.functional.elu
nn.functional.embedding nn.functional.gelu nn.functional.glu nn.functional.group_norm nn.functional.hardsigmoid
nn.functional.hardswish nn.functional.hardtanh nn.functional.layer_norm nn.functional.leaky_relu nn.functional.linear
nn.functional.logsigmoid nn.functional.max_pool2d nn.functional.mish nn.functional.mse_loss nn.functional.nll_loss
nn.functional.pad nn.functional.relu nn.functional.relu6 nn.functional.scaled_dot_product_attention nn.functional.silu
nn.functional.smooth_l1_loss nn.functional.softplus permute pow prod reciprocal remainder repeat reshape rsqrt scatter
scatter_add select select_scatter sigmoid sign sin slice slice_scatter softmax log_softmax sort split sqrt squeeze
stack std sub sum t tanh topk transpose tril triu unbind unfold unsqueeze var var_mean view where
""".split()

#: entry → why it does not pass yet
EXPECTED_FAILURES = {
    "nn.functional.embedding": "aten::embedding_renorm (max_norm) has no lowering",
}

ENTRIES = [entry for entry in op_db if entry.name in NAMES and torch.float32 in entry.supported_dtypes("cpu")]


def _id(entry):
    return entry.formatted_name


def to_xla(value):
    """The same arguments on xla; tensors that require a gradient stay leaves."""

    def move(x):
        if isinstance(x, torch.Tensor):
            return x.detach().to("xla").requires_grad_(x.requires_grad)
        return torch.device("xla") if isinstance(x, torch.device) and x.type == "cpu" else "xla" if x == "cpu" else x

    return tree_map(move, value)


def arguments(sample):
    return [sample.input, *sample.args], sample.kwargs


def is_random(entry, kwargs):
    return bool(kwargs.get("dropout_p"))


@pytest.mark.parametrize("entry", ENTRIES, ids=_id)
def test_forward_and_backward(entry, request):
    if entry.name in EXPECTED_FAILURES:
        request.applymarker(pytest.mark.xfail(reason=EXPECTED_FAILURES[entry.name], strict=True))
    gradients = entry.supports_autograd
    samples = list(entry.sample_inputs("cpu", torch.float32, requires_grad=gradients))
    for sample in samples[:SAMPLES]:
        args, kwargs = arguments(sample)
        if is_random(entry, kwargs):
            continue
        xla_args, xla_kwargs = to_xla(args), to_xla(kwargs)
        expected, result = entry(*args, **kwargs), entry(*xla_args, **xla_kwargs)
        compare(expected, result, sample)
        if gradients:
            backward(expected)
            backward(result)
            compare([x.grad for x in leaves((args, kwargs))], [x.grad for x in leaves((xla_args, xla_kwargs))], sample)


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
        # float32 sums in another order: a few units in the last place of the largest term
        torch.testing.assert_close(
            y.detach().cpu(), x.detach(), rtol=2e-4, atol=2e-4, equal_nan=True, msg=lambda m: f"{m}\n{sample.summary()}"
        )


def test_every_name_is_an_entry():
    assert set(NAMES) <= {entry.name for entry in op_db}
