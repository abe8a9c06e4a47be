import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from lazy_runtime.ops import computation
from lazy_runtime.torch_xla.core import xla_builder as xb


def traced():
    return xb._jax_to_xla_computation_cache_elements()


def test_nested_arguments_and_results():
    def function(nest, scale, *, shift):
        return {"sum": nest["a"] + nest["b"][0] * scale, "rest": (nest["b"][0].T, shift)}

    a, b = torch.randn(3, 3), torch.randn(3, 3)
    given = {"a": a.to("xla"), "b": [b.to("xla")]}
    found = xb.call_jax(function, (given, 2.0), {"shift": torch.tensor(4, device="xla")}, "named")
    torch.testing.assert_close(found["sum"].cpu(), a + b * 2)
    torch.testing.assert_close(found["rest"][0].cpu(), b.T)
    assert found["rest"][1].item() == 4
    assert found["rest"][1].dtype is torch.int64  # 64 bits stay


def test_is_traced_once_for_each_kind_of_arguments():
    def function(x, n):
        return x * n

    before = traced()
    x = torch.ones(3, device="xla")
    for arguments in ((x, 1.0), (x, 1.0), (x, 1), (x, 2.0), (torch.ones(2, device="xla"), 1.0)):
        xb.call_jax(function, arguments)
    assert traced() - before == 4
    xb.call_jax(lambda x, n: x * n, (x, 1.0), override_hash="mine")
    xb.call_jax(lambda x, n: x * n, (x, 1.0), override_hash="mine")
    assert traced() - before == 5


def test_flags_of_jax_belong_to_the_kind():
    def function(x):
        return x @ x

    x = torch.ones(3, 3, device="xla")
    before = traced()
    xb.call_jax(function, (x,))
    with jax.default_matmul_precision("highest"):
        xb.call_jax(function, (x,))
    assert traced() - before == 2


def test_constants_are_as_where_jax_runs_alone():
    x = torch.ones(3, device="xla")
    assert xb.call_jax(lambda x: x + jnp.ones(3), (x,)).dtype is torch.float32
    assert xb.call_jax(lambda x: x + jnp.arange(3), (x.double(),)).dtype is torch.float64
    constant = np.arange(3.0)
    assert xb.call_jax(lambda x, c: x + c, (x, constant)).tolist() == [1.0, 2.0, 3.0]


def test_dtypes_and_nothing_among_the_arguments():
    x = torch.tensor([1.5, 2.5], device="xla")
    found = xb.call_jax(lambda x, dtype, none: x.astype(dtype) if none is None else x, (x, torch.int32, None))
    assert found.dtype is torch.int32


def test_gradients_by_jax():
    x = torch.randn(3)
    gradient = xb.call_jax(jax.grad(lambda x: (x**3).sum()), (x.to("xla"),))
    torch.testing.assert_close(gradient.cpu(), 3 * x**2)


def test_equal_functions_are_one_program():
    x = torch.ones(5, device="xla")
    xb.call_jax(lambda x: jnp.sinh(x) * 3, (x,))
    before = len(computation._computations)
    xb.call_jax(lambda x: jnp.sinh(x) * 3, (x,))
    assert len(computation._computations) == before


def test_functions_that_build_operations():
    callable_ = xb.XlaCallable(lambda x, scale: (x + x, x * xb.Op.scalar(x.builder(), scale)))
    doubled, scaled = callable_(torch.ones(2, device="xla"), 3.0)
    assert doubled.tolist() == [2.0, 2.0]
    assert scaled.tolist() == [3.0, 3.0]


def test_the_pieces():
    flat = xb.FlattenedInputFunc(lambda x, n: [x, n])
    with pytest.raises(RuntimeError, match="call preprocess first"):
        flat.flat_call([])
    with pytest.raises(RuntimeError, match="call flat_call first"):
        flat.postprocess([])
    x = torch.ones(1)
    assert flat.preprocess((x, 3)) == (x,)
    assert flat.postprocess(flat.flat_call([x])) == [x, 3]
    with pytest.raises(TypeError, match="abstract"):
        xb.CompiledCallableWithCache(flat)  # type: ignore[abstract]
    jax_flat = xb.JaxFlattenedInputFunc(lambda x, d: x)
    jax_flat.preprocess((x, torch.float16))
    assert jax_flat.non_tensors[1] == np.dtype("float16")
    assert isinstance(xb.JaxCallable(jnp.sin)(torch.zeros(1, device="xla")), torch.Tensor)


@pytest.mark.parametrize("kind", [xb.JaxCallable, xb.XlaCallable])
def test_a_function_of_tensors_like_these(kind):
    callable_ = kind(lambda x, y: {"sum": x + y, "product": x * y})
    x, y = torch.randn(3), torch.randn(3)
    tensors = callable_._flat_input_func.preprocess((x.to("xla"), y.to("xla")))
    function = callable_.specialize(tensors)
    for factor in (1.0, 2.0):
        flat = function([x.to("xla") * factor, y.to("xla")])
        found = callable_._flat_input_func.postprocess(flat)
        torch.testing.assert_close(found["sum"].cpu(), x * factor + y)
        torch.testing.assert_close(found["product"].cpu(), x * factor * y)


def test_ones_own_kind_of_function():
    specialized = []

    class OnTheHost(xb.CompiledCallableWithCache):
        def specialize(self, sample_flat_args):
            specialized.append([tuple(each.shape) for each in sample_flat_args])
            self._flat_input_func.flat_call(sample_flat_args)
            return lambda tensors: [each.cpu() * 2 for each in tensors]

    doubled = OnTheHost(xb.FlattenedInputFunc(lambda x: [x]))
    for size in (2, 2, 3):
        (found,) = doubled(torch.ones(size, device="xla"))
        assert found.tolist() == [2.0] * size
    assert specialized == [[(2,)], [(3,)]]
