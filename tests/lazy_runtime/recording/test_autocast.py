"""`torch.autocast("xla")`: CUDA's lists and rules, gradients in float32, and autocast left alone elsewhere."""

from __future__ import annotations

import copy
import re
import subprocess
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.testing._internal.autocast_test_lists import AutocastTestLists
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import checkpoint

from lazy_runtime.common import metrics
from lazy_runtime.torch_xla.experimental import eager_mode

F = torch.nn.functional
HEADER = Path(torch.__file__).parent / "include" / "ATen" / "autocast_mode.h"
LOWER_PRECISION, FLOAT32, PROMOTE, BUILTIN = "lower precision", "float32", "promote", "built in"
GROUPS = {  # torch's own test cases for CUDA → the policy that they are about, where the functions are
    "torch_fp16": (LOWER_PRECISION, torch),
    "nn_fp16": (LOWER_PRECISION, torch._C._nn),
    "linalg_fp16": (LOWER_PRECISION, torch._C._linalg),
    "methods_fp16": (LOWER_PRECISION, torch.Tensor),
    "torch_fp32": (FLOAT32, torch),
    "nn_fp32": (FLOAT32, torch._C._nn),
    "methods_fp32": (FLOAT32, torch.Tensor),
    "torch_need_autocast_promote": (PROMOTE, torch),
    "torch_expect_builtin_promote": (BUILTIN, torch),
}


@pytest.fixture(params=["lazy", "eager"])
def road(request: pytest.FixtureRequest) -> str:
    eager_mode(request.param == "eager")
    return request.param


def _cases() -> list[Any]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        lists = AutocastTestLists(torch.device("cpu"))
    found = []
    for group, (policy, module) in GROUPS.items():
        for number, (name, args, *rest) in enumerate(getattr(lists, group)):
            # `equal` reads a value. torch's own entry for einsum does not fit its equation.
            if "cudnn" in name or name in ("einsum", "equal"):
                continue
            kwargs = rest[0] if rest and isinstance(rest[0], dict) else {}
            out = rest[0] if policy is BUILTIN else None
            case = (policy, getattr(module, name), args, kwargs, out)
            found.append(pytest.param(*case, id=f"{group}-{number}-{name}"))
    return found


def _tensors(function: Any, tree: Any) -> Any:
    return pytree.tree_map(lambda x: function(x) if isinstance(x, torch.Tensor) else x, tree)


def _call(function: Any, args: Any, kwargs: Any) -> list[torch.Tensor]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecations that torch's own cases meet
        return pytree.tree_leaves(function(*args, **kwargs))


def _floats(dtype: torch.dtype) -> Any:
    return lambda x: x.to(dtype) if x.is_floating_point() else x


def _as_16_bit(dtype: torch.dtype) -> Any:
    return lambda x: x.to(dtype) if x.dtype == torch.float16 else x


def _close(found: torch.Tensor, expected: torch.Tensor) -> None:
    """Equal but for roundings: sums of up to 4096 products, of numbers as large as the largest result. A 16-bit
    chain of products is rounded once per link; float32 roundings add up over the elements of a sum.
    """
    assert found.dtype == expected.dtype
    size = expected.double().abs().nan_to_num(posinf=0.0).max().item() if expected.numel() else 0.0
    roundings = 4 if expected.dtype.itemsize == 2 else 32
    atol = roundings * torch.finfo(expected.dtype).eps * max(size, 1.0) if expected.is_floating_point() else 0
    torch.testing.assert_close(found.cpu(), expected, rtol=0, atol=atol, equal_nan=True)


def test_every_operator_of_cuda_s_lists_is_registered() -> None:
    lists = re.split(r"#define (?=AT_FORALL_)", HEADER.read_text())
    names = set()
    for text in lists:
        name = text.split("(")[0]
        if name == "AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE":
            names.update(re.findall(r'"(norm\.\w+)"', text))
        elif name in (
            "AT_FORALL_LOWER_PRECISION_FP",
            "AT_FORALL_FP32",
            "AT_FORALL_FP32_SET_OPT_DTYPE",
            "AT_FORALL_PROMOTE",
        ):
            for packet, overload in re.findall(r"_\((\w+)(?:, (\w+))?\)", text):
                names.add(f"{packet}.{overload}" if overload else packet)
    assert len(names) > 100
    assert not [
        name for name in names if not torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", "AutocastXLA")
    ]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("policy", "function", "args", "kwargs", "out"), _cases())
def test_dtypes_of_cuda_s_lists(
    policy: str, function: Any, args: Any, kwargs: Any, out: torch.dtype | None, dtype: torch.dtype
) -> None:
    expected = {LOWER_PRECISION: dtype, FLOAT32: torch.float32, PROMOTE: torch.float32, BUILTIN: out}[policy]
    torch.empty(0, device="xla")  # brings xla up before a fake tensor asks for it
    with FakeTensorMode(allow_non_fake_inputs=True):
        fake = _tensors(lambda x: torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="xla:0"), args)
        fake = _tensors(_as_16_bit(dtype), fake)
        with torch.autocast("xla", dtype=dtype):
            assert {x.dtype for x in _call(function, fake, kwargs)} == {expected}


@pytest.mark.parametrize(("policy", "function", "args", "kwargs", "out"), _cases())
def test_values_of_cuda_s_lists(policy: str, function: Any, args: Any, kwargs: Any, out: torch.dtype | None) -> None:
    """Against the CPU without autocast, on arguments that were cast by hand."""
    dtype = torch.bfloat16
    args = _tensors(_as_16_bit(dtype), args)
    cast = args if policy is BUILTIN else _tensors(_floats(dtype if policy is LOWER_PRECISION else torch.float32), args)
    with torch.autocast("xla", dtype=dtype):
        found = _call(function, _tensors(lambda x: x.to("xla"), args), kwargs)
    for x, y in zip(found, _call(function, cast, kwargs), strict=True):
        _close(x, y)


def test_binary_cross_entropy_is_banned() -> None:
    x = torch.rand(4, device="xla")
    with torch.autocast("xla"), pytest.raises(RuntimeError, match="unsafe to autocast"):
        F.binary_cross_entropy(x, x)
    F.binary_cross_entropy(x, x)


def test_einsum() -> None:
    x = torch.ones(2, 3, device="xla")
    with torch.autocast("xla"):
        assert torch.einsum("ij,kj->ik", x, x).dtype is torch.bfloat16


def test_what_is_not_cast() -> None:
    x = torch.ones(3, 3, device="xla")
    with torch.autocast("xla"):
        assert (x + x).dtype is torch.float32
        assert (x.double() @ x.double()).dtype is torch.float64
        assert torch.exp(x.double()).dtype is torch.float64
        assert (x.int() @ x.int()).dtype is torch.int32
        assert torch.mm(x, x, out=torch.empty_like(x)).dtype is torch.float32
        assert x.clone().addmm_(x, x).dtype is torch.float32
        assert x.bfloat16().mean().dtype is torch.bfloat16
        assert x.bfloat16().sum().dtype is torch.float32
        assert x.bfloat16().sum(dtype=torch.bfloat16).dtype is torch.bfloat16


def test_promotion_refuses_what_cuda_s_refuses() -> None:
    half = torch.ones(3, dtype=torch.float16, device="xla")
    with (
        torch.autocast("xla", dtype=torch.bfloat16),
        pytest.raises(RuntimeError, match="Unexpected floating ScalarType"),
    ):
        torch.dot(half, half)
    assert torch.get_autocast_dtype("cuda") is torch.float16


def test_dtype_and_nesting() -> None:
    x = torch.ones(2, 2, device="xla")
    assert torch.get_autocast_dtype("xla") is torch.bfloat16
    with torch.autocast("xla"):
        assert (x @ x).dtype is torch.bfloat16
        with torch.autocast("xla", enabled=False):
            assert not torch.is_autocast_enabled("xla")
            assert (x @ x).dtype is torch.float32
        with torch.autocast("xla", dtype=torch.float16):
            assert (x @ x).dtype is torch.float16
        assert (x @ x).dtype is torch.bfloat16
        assert torch.get_autocast_dtype("cuda") is torch.float16
    assert (x @ x).dtype is torch.float32
    with pytest.warns(UserWarning, match="target dtype is not supported"), torch.autocast("xla", dtype=torch.float32):
        assert (x @ x).dtype is torch.float32


def test_decorator_and_default_dtype() -> None:
    @torch.autocast("xla")
    def square(x: torch.Tensor) -> torch.Tensor:
        return x @ x

    assert square(torch.ones(2, 2, device="xla")).dtype is torch.bfloat16
    torch.set_autocast_dtype("xla", torch.float16)
    try:
        with torch.autocast("xla"):
            assert (torch.ones(2, 2, device="xla") @ torch.ones(2, 2, device="xla")).dtype is torch.float16
    finally:
        torch.set_autocast_dtype("xla", torch.bfloat16)


def test_other_devices_are_left_alone() -> None:
    x = torch.ones(2, 2)
    with torch.autocast("xla"):
        assert (x @ x).dtype is torch.float32
        assert torch.exp(x.bfloat16()).dtype is torch.bfloat16
    with torch.autocast("cpu"):
        assert (x @ x).dtype is torch.bfloat16
        assert (x.to("xla") @ x.to("xla")).dtype is torch.float32
        with torch.autocast("xla", dtype=torch.float16):
            assert (x @ x).dtype is torch.bfloat16
            assert (x.to("xla") @ x.to("xla")).dtype is torch.float16


def test_state_belongs_to_a_thread() -> None:
    x = torch.ones(2, 2, device="xla")
    found = []
    with torch.autocast("xla"):
        thread = threading.Thread(target=lambda: found.append((x @ x).dtype))
        thread.start()
        thread.join()
    assert found == [torch.float32]


def test_gradients_are_those_of_the_float32_parameter(road: str) -> None:
    weight = torch.nn.Parameter(torch.randn(4, 3, device="xla"))
    x = torch.randn(5, 4)
    with torch.autocast("xla"):
        y = x.to("xla") @ weight
        loss = y.sum() + (y * y).sum()
    loss.backward()
    expected = weight.detach().cpu().requires_grad_()
    product = x.bfloat16() @ expected.bfloat16()
    (product.float().sum() + (product * product).float().sum()).backward()
    assert weight.grad is not None
    assert expected.grad is not None
    _close(weight.grad.bfloat16(), expected.grad.bfloat16())
    assert weight.grad.dtype is torch.float32


def _casts(repeat: int, weight: torch.Tensor, **options: Any) -> int:
    x = torch.ones(2, 2, device="xla", dtype=torch.bfloat16)
    metrics.clear()
    with torch.autocast("xla", **options):
        total = sum((x @ weight).float().sum() for _ in range(repeat))
    count = metrics.value("xla::_to_copy")
    if isinstance(total, torch.Tensor) and total.requires_grad:
        total.backward()
    return count - repeat  # `.float()` is one each


def test_casts_of_leaves_are_kept_until_the_outermost_exit() -> None:
    weight = torch.nn.Parameter(torch.ones(2, 2, device="xla"))
    assert _casts(3, weight) == 1
    torch.testing.assert_close(weight.grad, torch.full((2, 2), 6.0, device="xla"))
    assert _casts(3, weight) == 1  # a new region casts anew
    assert _casts(3, weight, cache_enabled=False) == 3
    assert _casts(3, weight.detach()) == 3
    assert _casts(3, weight * 1) == 3

    x = torch.ones(2, 2, device="xla")
    with torch.autocast("xla"):
        with torch.autocast("xla"):
            x @ weight
        with torch.no_grad():
            weight.add_(1)
        torch.testing.assert_close((x @ weight).cpu().float(), torch.full((2, 2), 2.0))  # as kept
        torch.clear_autocast_cache()
        torch.testing.assert_close((x @ weight).cpu().float(), torch.full((2, 2), 4.0))
        with torch.no_grad():
            weight.add_(1)
    with torch.autocast("xla"):
        torch.testing.assert_close((x @ weight).cpu().float(), torch.full((2, 2), 6.0))


def _model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Conv2d(2, 4, 3),
        torch.nn.BatchNorm2d(4),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(64, 8),
        torch.nn.LayerNorm(8),
        torch.nn.Linear(8, 3),
    )


class _ByHand(torch.nn.Module):
    """What autocast makes of `_model()`, written out."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        conv, norm, _, _, first, layer_norm, last = self.model
        low = torch.bfloat16
        x = F.relu(norm(F.conv2d(x.to(low), conv.weight.to(low), conv.bias.to(low)))).flatten(1)
        x = layer_norm(F.linear(x, first.weight.to(low), first.bias.to(low)).float())
        return F.linear(x.to(low), last.weight.to(low), last.bias.to(low))


def _train(model: torch.nn.Module, device: str, autocast: bool, steps: int = 5) -> list[float]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    x = torch.linspace(-1, 1, 4 * 2 * 36).view(4, 2, 6, 6).to(device)
    target = torch.tensor([0, 1, 2, 1]).to(device)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        with torch.autocast("xla", enabled=autocast):
            output = model(x)
            loss = F.cross_entropy(output if autocast else output.float(), target)
        assert output.dtype is torch.bfloat16
        assert loss.dtype is torch.float32
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert all(parameter.grad.dtype is torch.float32 for parameter in model.parameters())
    return losses


# bfloat16 has 8 bits: a loss of about 1 differs by some of its roundings, and training by what grows from them
TRAINED = {"rtol": 0.0, "atol": 8 * torch.finfo(torch.bfloat16).eps}


def test_training(road: str) -> None:
    model = _model()
    expected = _train(_ByHand(copy.deepcopy(model)), "cpu", autocast=False)
    found = _train(model.to("xla"), "xla", autocast=True)
    assert expected[-1] < 0.7 * expected[0]  # it learns
    torch.testing.assert_close(torch.tensor(found), torch.tensor(expected), **TRAINED)


def test_training_compiled_within_autocast() -> None:
    model = _model()
    expected = _train(_ByHand(copy.deepcopy(model)), "cpu", autocast=False)
    found = _train(torch.compile(model.to("xla"), backend="openxla", fullgraph=True), "xla", autocast=True)
    torch.testing.assert_close(torch.tensor(found), torch.tensor(expected), **TRAINED)


def test_compiled_function_that_enters_autocast() -> None:
    model = torch.nn.Linear(4, 3).to("xla")

    def function(x: torch.Tensor) -> Any:
        with torch.autocast("xla", dtype=torch.float16):
            y = model(x)
            with torch.autocast("xla", enabled=False):
                z = x @ x.t()
            loss = F.log_softmax(y, 1).sum()
        return y, z, loss, x @ x.t()

    x = torch.randn(5, 4, device="xla")
    results, gradients = [], []
    for each in (function, torch.compile(function, backend="openxla", fullgraph=True)):
        model.zero_grad()
        results.append(each(x))
        results[-1][2].backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    assert [y.dtype for y in results[1]] == [torch.float16, torch.float32, torch.float32, torch.float32]
    for x, y in zip(results[0], results[1], strict=True):
        _close(y, x.detach().cpu())
    for x, y in zip(*gradients, strict=True):
        assert y.dtype is torch.float32
        _close(y.half(), x.cpu().half())


def test_compiled_function_follows_the_autocast_around_it() -> None:
    compiled = torch.compile(lambda x: x @ x, backend="openxla", fullgraph=True)
    x = torch.ones(3, 3, device="xla")
    assert compiled(x).dtype is torch.float32
    with torch.autocast("xla"):
        assert compiled(x).dtype is torch.bfloat16
        with torch.autocast("xla", enabled=False):
            assert compiled(x).dtype is torch.float32
    with torch.autocast("xla", dtype=torch.float16):
        assert compiled(x).dtype is torch.float16


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint_computes_again_under_the_same_autocast(reentrant: bool, road: str) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2)).to("xla")
    seen: list[torch.dtype] = []
    model[0].register_forward_hook(lambda module, args, output: seen.append(output.dtype))
    x = torch.randn(3, 4, device="xla", requires_grad=True)
    gradients = []
    for run in (model, lambda x: checkpoint(model, x, use_reentrant=reentrant)):
        model.zero_grad()
        with torch.autocast("xla"):
            y = run(x)
        y.float().square().sum().backward()
        gradients.append([parameter.grad.cpu() for parameter in model.parameters()])
    assert seen == [torch.bfloat16] * 3  # forward, forward, forward again
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b)


def test_custom_fwd_and_custom_bwd() -> None:
    seen: dict[str, Any] = {}

    class Product(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="xla")
        def forward(ctx: Any, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(a, b)
            seen["forward"] = torch.is_autocast_enabled("xla")
            return a @ b

        @staticmethod
        @torch.amp.custom_bwd(device_type="xla")
        def backward(ctx: Any, grad: torch.Tensor) -> Any:  # type: ignore[override]
            a, b = ctx.saved_tensors
            seen["backward"] = torch.is_autocast_enabled("xla")
            return grad @ b.t(), a.t() @ grad

    class InFloat32(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="xla", cast_inputs=torch.float32)
        def forward(ctx: Any, a: torch.Tensor) -> torch.Tensor:
            seen["inputs"] = a.dtype, torch.is_autocast_enabled("xla")
            return a @ a

        @staticmethod
        @torch.amp.custom_bwd(device_type="xla")
        def backward(ctx: Any, grad: torch.Tensor) -> Any:  # type: ignore[override]
            seen["after"] = torch.is_autocast_enabled("xla")
            return grad

    x = torch.randn(3, 3, device="xla", requires_grad=True)
    with torch.autocast("xla"):
        y = Product.apply(x, x)
        z = InFloat32.apply(y)
    assert (y.dtype, z.dtype) == (torch.bfloat16, torch.float32)
    (y.float().sum() + z.sum()).backward()
    assert seen == {
        "forward": True,
        "backward": True,
        "inputs": (torch.float32, False),
        "after": False,
    }
    assert x.grad is not None
    assert x.grad.dtype is torch.float32


def _inference_cases() -> dict[str, Any]:
    x, image = torch.rand(4, 4), torch.rand(1, 2, 6, 6)
    low, target = x.bfloat16(), torch.arange(4)
    return {
        "cross_entropy": (F.cross_entropy, low, target),
        "nll_loss": (F.nll_loss, low, target),
        "conv2d": (lambda image, weight: F.conv2d(image, weight, padding="same"), image, torch.rand(3, 2, 3, 3)),
        "square": (torch.square, low),
        "norm": (torch.linalg.norm, low),
        "cov": (torch.cov, x),
        "kron": (torch.kron, x, x),
        "normalize": (F.normalize, low),
        "tensordot": (torch.tensordot, x, x),
        "group_norm": (lambda image: F.group_norm(image, 1), image.bfloat16()),
        "batch_norm": (lambda image: F.batch_norm(image, None, None, training=True), image.bfloat16()),
        "attention": (F.scaled_dot_product_attention, image, image, image),
        "std": (torch.std, low),
    }


@pytest.mark.parametrize("name", _inference_cases())
def test_inference_mode_casts_as_elsewhere(name: str) -> None:
    function, *args = _inference_cases()[name]
    args = _tensors(lambda x: x.to("xla"), args)
    with torch.autocast("xla"):
        expected = function(*args)
        with torch.inference_mode():
            found = function(*args)
            with torch.autocast("xla", enabled=False):
                plain = function(*args)
    assert found.dtype is expected.dtype
    _close(found.clone(), expected.cpu())
    assert plain.dtype is args[0].dtype


@pytest.mark.parametrize("layer", [torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_recurrent_layers_run_in_the_lower_precision(layer: Any, dtype: torch.dtype) -> None:
    """As with cuDNN, whichever dtype the input has; weights are float32."""
    model = layer(3, 4, num_layers=2)
    x = torch.randn(5, 2, 3)
    expected, _ = copy.deepcopy(model).bfloat16()(x.bfloat16())
    model = model.to("xla")
    packed = torch.nn.utils.rnn.PackedSequence(x.flatten(0, 1).to("xla", dtype), torch.full((5,), 2))
    with torch.autocast("xla"):
        output, state = model(x.to("xla", dtype))
        from_packed, _ = model(packed)
    assert {leaf.dtype for leaf in pytree.tree_leaves((output, state))} == {torch.bfloat16}
    _close(output.detach(), expected.detach())
    _close(from_packed.data.detach(), expected.detach().flatten(0, 1))
    output.float().sum().backward()
    assert model.weight_hh_l0.grad.dtype is torch.float32


def test_threads_share_the_cache_of_casts() -> None:
    """Torch holds a lock while it fills the cache, and xla's cast runs Python: no thread may wait for both."""
    eager_mode(True)
    weights = [torch.nn.Parameter(torch.randn(3, 3, device="xla")) for _ in range(10)]
    interval = sys.getswitchinterval()
    done = []

    def work() -> None:
        with torch.autocast("xla"):
            done.append([(weight @ weight).dtype for weight in weights])

    threads = [threading.Thread(target=work, daemon=True) for _ in range(4)]
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=60)
    finally:
        sys.setswitchinterval(interval)
    assert done == [[torch.bfloat16] * 10] * 4


def test_autocast_of_the_cpu_needs_no_jax() -> None:
    code = (
        "import sys, torch\n"
        "x = torch.ones(2, 2)\n"
        "with torch.autocast('cpu'), torch.autocast('xla'): assert (x @ x).dtype is torch.bfloat16\n"
        "assert 'jax' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
