import pytest
import torch

from lazy_runtime.torch_xla import _XLAC


def test_products_of_any_dimensions():
    x, y = torch.randn(2, 3, 4), torch.randn(2, 5, 4)
    found = _XLAC._xla_dot_general(x.to("xla"), y.to("xla"), (([2], [2]), ([0], [0])), "highest")
    torch.testing.assert_close(found.cpu(), torch.einsum("bij,bkj->bik", x, y))
    whole = torch.randint(-5, 5, (3, 4), dtype=torch.int8), torch.randint(-5, 5, (4, 2), dtype=torch.int8)
    numbers = ((1,), (0,)), ()
    found = _XLAC._xla_dot_general(whole[0].to("xla"), whole[1].to("xla"), numbers, None, torch.int32)
    assert found.dtype is torch.int32
    assert torch.equal(found.cpu(), (whole[0].int() @ whole[1].int()))


def test_numbers_of_four_bits():
    weight = torch.zeros(2, 2, dtype=torch.int8, device="xla")
    assert _XLAC._xla_cast_int4(weight, [-8, 7, 0, 1]).tolist() == [[-8, 7], [0, 1]]
    with pytest.raises(ValueError, match="expected 4 numbers, got 1"):
        _XLAC._xla_cast_int4(weight, [1])
    with pytest.raises(ValueError, match="from -8 to 7, got 8"):
        _XLAC._xla_cast_int4(weight, [8, 0, 0, 0])


def test_quantization():
    x = torch.randn(3, 4)
    for scales, zeros, axis in (([0.1], [3], -1), ([0.1, 0.2, 0.3], [0, 1, 2], 0)):
        found = _XLAC._xla_quantize_tensor(x.to("xla"), scales, zeros, -128, 127, "int8", axis)
        scale, zero = (torch.tensor(each).reshape(-1, 1) for each in (scales, zeros))
        expected = (torch.round(x / scale) + zero).clamp(-128, 127)
        assert found.dtype is torch.int8
        assert torch.equal(found.cpu(), expected.to(torch.int8))
        back = _XLAC._xla_dequantize_tensor(found, scales, zeros, -128, 127, "int8", axis)
        torch.testing.assert_close(back.cpu(), (expected - zero) * scale)
    with pytest.raises(ValueError, match="'float32'"):
        _XLAC._xla_quantize_tensor(x, [1.0], [0], 0, 1, "float32")


def test_sizes_of_other_tensors():
    x, other = torch.arange(3.0).to("xla"), torch.ones(5, 2, device="xla")
    assert _XLAC._xla_dynamic_expand(x, [1, 3], other, 0, 0).shape == (5, 3)
    assert _XLAC._xla_dynamic_view(torch.arange(10.0).to("xla"), [1, 2], other, 0, 0, 1).shape == (5, 2)
    with pytest.raises(NotImplementedError, match="mark_dynamic"):
        _XLAC._xla_mark_dynamic(x, 0)


def test_barriers():
    x = torch.ones(3, device="xla") * 2
    _XLAC._xla_optimization_barrier_([x])
    assert x.tolist() == [2] * 3


def test_kernels_of_tpus():
    with pytest.raises(RuntimeError, match="call_jax"):
        _XLAC._xla_tpu_custom_call([torch.ones(1, device="xla")], "{}", [[1]], [torch.float32])


def test_functions_for_custom_calls():
    import jax
    import jax.ffi

    capsule = jax.ffi.pycapsule  # a capsule over an address
    with pytest.raises(Exception, match=r"(?i)capsule|handler|argument"):
        _XLAC._xla_register_custom_call_target("mine", object(), "Host")
    assert callable(capsule)


@pytest.mark.parametrize("skipped", [0.0, 1.0])
@pytest.mark.parametrize("use_adamw", [True, False])
def test_steps_of_adam(use_adamw, skipped):
    kind = torch.optim.AdamW if use_adamw else torch.optim.Adam
    weight, gradients = torch.randn(5), [torch.randn(5) for _ in range(3)]
    expected = weight.clone().requires_grad_()
    optimizer = kind([expected], lr=0.1, weight_decay=0.2, amsgrad=True, maximize=True)
    param = weight.to("xla")
    state = [torch.zeros(5, device="xla") for _ in range(3)]
    step, inf = torch.zeros((), device="xla"), torch.tensor([skipped]).to("xla")
    for gradient in gradients:
        expected.grad = gradient.clone()
        optimizer.step()
        _XLAC._xla_adam_optimizer_step_(
            inf, step, param, gradient.to("xla"), *state, 0.9, 0.999, 0.1, 0.2, 1e-8, True, True, use_adamw
        )
    torch.testing.assert_close(param.cpu(), weight if skipped else expected.detach())
    assert step.item() == (0 if skipped else 3)


@pytest.mark.parametrize("nesterov", [True, False])
def test_steps_of_sgd(nesterov):
    weight, gradients = torch.randn(5), [torch.randn(5) for _ in range(3)]
    expected = weight.clone().requires_grad_()
    optimizer = torch.optim.SGD([expected], lr=0.1, momentum=0.9, weight_decay=0.1, nesterov=nesterov)
    param, buffer = weight.to("xla"), torch.zeros(5, device="xla")
    step, no = torch.zeros((), device="xla"), torch.zeros(1, device="xla")
    for gradient in gradients:
        expected.grad = gradient.clone()
        optimizer.step()
        _XLAC._xla_sgd_optimizer_step_(no, step, param, buffer, gradient.to("xla"), 0.1, 0.9, 0.1, 0.0, nesterov, False)
    torch.testing.assert_close(param.cpu(), expected.detach())
    before = param.clone()
    _XLAC._xla_sgd_optimizer_step_(
        no + 1, step, param, buffer, gradients[0].to("xla"), 0.1, 0.9, 0.1, 0.0, nesterov, False
    )
    assert torch.equal(param.cpu(), before.cpu())
