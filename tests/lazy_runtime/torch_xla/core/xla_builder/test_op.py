import pytest
import torch

from lazy_runtime.torch_xla.core import xla_builder as xb
from lazy_runtime.torch_xla.core import xla_op_registry as xor

Op = xb.Op


def run(build, *tensors):
    """What a function of operations gives of tensors, on the CPU."""
    computation = Op.make_computation("tested", build, [xb.tensor_shape(each) for each in tensors])
    found = xb.xla_computation_as_func(computation)([each.to("xla") for each in tensors])
    return found[0].cpu() if len(found) == 1 else [each.cpu() for each in found]


def check(build, expected, *tensors):
    torch.testing.assert_close(run(build, *tensors), expected(*tensors))


UNARY = {
    "acos": torch.acos,
    "asin": torch.asin,
    "atan": torch.atan,
    "ceil": torch.ceil,
    "cos": torch.cos,
    "cosh": torch.cosh,
    "erf": torch.erf,
    "erfc": torch.erfc,
    "erfinf": torch.erfinv,
    "exp": torch.exp,
    "expm1": torch.expm1,
    "floor": torch.floor,
    "log": torch.log,
    "log1p": torch.log1p,
    "rsqrt": torch.rsqrt,
    "sin": torch.sin,
    "sinh": torch.sinh,
    "sqrt": torch.sqrt,
    "tan": torch.tan,
    "tanh": torch.tanh,
    "__neg__": torch.neg,
    "zeros_like": torch.zeros_like,
    "ones_like": torch.ones_like,
}


@pytest.mark.parametrize("name", UNARY)
def test_unary(name):
    check(lambda x: getattr(x, name)(), UNARY[name], torch.rand(3, 5) * 0.8 + 0.1)


def test_complex_numbers_and_bits():
    z = torch.randn(4, dtype=torch.complex64)
    check(lambda x: x.real(), lambda z: z.real.clone(), z)
    check(lambda x: x.imag(), lambda z: z.imag.clone(), z)
    check(lambda x: x.conj(), lambda z: z.conj().resolve_conj(), z)
    check(
        lambda x: x.clz(), lambda x: torch.tensor([31, 30, 0, 32], dtype=torch.int32), torch.tensor([1, 2, -1, 0]).int()
    )
    check(lambda x: ~x, torch.bitwise_not, torch.tensor([1, -2]).int())
    check(lambda x: x.__not__(), torch.logical_not, torch.tensor([True, False]))
    check(lambda x: x.cast(xb.Type.S64), lambda x: x.long(), torch.tensor([1.5, -2.5]))
    check(lambda x: x.bitcast(xb.Type.S32), lambda x: x.view(torch.int32), torch.randn(3))


BINARY = {
    "__add__": torch.add,
    "__sub__": torch.sub,
    "__mul__": torch.mul,
    "__truediv__": torch.div,
    "__pow__": torch.pow,
    "__mod__": torch.fmod,
    "__eq__": torch.eq,
    "__ne__": torch.ne,
    "__le__": torch.le,
    "__lt__": torch.lt,
    "__ge__": torch.ge,
    "__gt__": torch.gt,
    "atan2": torch.atan2,
    "max": torch.maximum,
    "min": torch.minimum,
}


@pytest.mark.parametrize("name", BINARY)
@pytest.mark.parametrize("sizes", [(3, 4), (1, 4), ()])
def test_binary(name, sizes):
    x, y = torch.rand(3, 4) + 0.5, torch.rand(sizes) + 0.5
    check(lambda x, y: getattr(x, name)(y), BINARY[name], x, y)


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("__and__", torch.bitwise_and),
        ("__or__", torch.bitwise_or),
        ("__xor__", torch.bitwise_xor),
        ("__lshift__", torch.bitwise_left_shift),
        ("__rshift__", torch.bitwise_right_shift),
    ],
)
def test_bits(name, function):
    x, y = torch.tensor([-9, 5, 12], dtype=torch.int32), torch.tensor([1, 3, 2], dtype=torch.int32)
    check(lambda x, y: getattr(x, name)(y), function, x, y)
    if name == "__rshift__":  # unsigned, zeros come from the left
        given = torch.tensor([0xF0], dtype=torch.uint8), torch.tensor([4], dtype=torch.uint8)
        check(lambda x, y: x >> y, lambda x, y: torch.tensor([0x0F], dtype=torch.uint8), *given)


def test_nothing_is_converted():
    with pytest.raises(TypeError, match=r"float32.*int32|same dtype"):
        run(lambda x, y: x + y, torch.ones(2), torch.ones(2).int())


def test_product():
    check(lambda x, y: x @ y, torch.matmul, torch.randn(3, 4), torch.randn(4, 5))


def test_shapes():
    x = torch.arange(24.0).reshape(2, 3, 4)
    check(lambda x: x.reshape((6, 4)), lambda x: x.reshape(6, 4), x)
    check(lambda x: x.reshape((12, 2), (2, 0, 1)), lambda x: x.permute(2, 0, 1).reshape(12, 2), x)
    check(lambda x: x.dynamic_reshape((24,)), lambda x: x.reshape(24), x)
    check(lambda x: x.broadcast((5,)), lambda x: x.expand(5, 2, 3, 4).clone(), x)
    check(lambda x: x.broadcast_in_dim((2, 3, 6, 4), (0, 1, 3)), lambda x: x[:, :, None].repeat(1, 1, 6, 1), x)
    check(lambda x: x.transpose((2, 0, 1)), lambda x: x.permute(2, 0, 1).contiguous(), x)
    check(lambda x: x.rev((0, 2)), lambda x: x.flip(0, 2), x)
    check(lambda x: x.slice((0, 1, 0), (2, 3, 4), (1, 1, 2)), lambda x: x[:, 1:3, ::2].clone(), x)
    check(lambda x: x.slice((0, 1, 0), (2, 3, 4)), lambda x: x[:, 1:3].clone(), x)
    check(lambda x: x.slice_in_dim(1, 4, 2, 2), lambda x: x[:, :, 1:4:2].clone(), x)
    check(lambda x: x.get_dimension_size(1), lambda x: torch.tensor(3, dtype=torch.int32), x)
    check(
        lambda x: x.pad(Op.scalar(x.builder(), 7.0), ((1, 0, 0), (0, 0, 1), (0, 2, 0))),
        lambda x: torch.nn.functional.pad(
            torch.stack([x[:, 0], torch.full((2, 4), 7.0), x[:, 1], torch.full((2, 4), 7.0), x[:, 2]], 1),
            (0, 2, 0, 0, 1, 0),
            value=7.0,
        ),
        x,
    )
    check(lambda x, y: Op.concat_in_dim((x, y), 1), lambda x, y: torch.cat([x, y], 1), x, x + 1)


def test_dynamic_sizes_are_refused():
    with pytest.raises(NotImplementedError, match="bounded sizes"):
        run(lambda x, n: x.set_dimension_size(n, 0), torch.ones(4), torch.tensor(2, dtype=torch.int32))
    with pytest.raises(NotImplementedError, match="bounded sizes"):
        xb.mkshape("f32", (3,), (True,))


def test_places_that_are_computed():
    x, n = torch.arange(20.0).reshape(4, 5), torch.tensor(3, dtype=torch.int32)
    check(lambda x, n: x.dynamic_slice((n, n), (2, 2)), lambda x, n: x[2:4, 3:5].clone(), x, n)  # moved inside

    def updated(x, n):
        x = x.clone()
        x[3, 3] = 7
        return x

    check(
        lambda x, n: x.dynamic_update_slice(x.slice((0, 0), (1, 1)) + Op.scalar(x.builder(), 7.0), (n, n)),
        updated,
        x,
        n,
    )


def test_gather_and_scatter():
    x, rows = torch.randn(6, 3), torch.tensor([4, 0, 4], dtype=torch.int32)
    check(lambda x, i: x.gather(i, (1,), (0,), (0,), 1), lambda x, i: x[i.long()], x, rows)
    updates = torch.randn(3, 3)

    def added(kind):
        return lambda x, i, u: x.scatter(i, u, kind, (1,), (0,), (0,), 1)

    check(added(lambda a, b: a + b), lambda x, i, u: x.index_add(0, i.long(), u), x, rows, updates)
    for kind, name in ((Op.max, "amax"), (Op.min, "amin"), (Op.__mul__, "prod")):
        index = rows.long()[:, None].expand(3, 3)
        expected = x.scatter_reduce(0, index, updates, name)
        torch.testing.assert_close(run(added(kind), x, rows, updates), expected)
    alone = torch.tensor([4, 0, 1], dtype=torch.int32)
    check(added(lambda a, b: b), lambda x, i, u: x.index_copy(0, i.long(), u), x, alone, updates)
    with pytest.raises(NotImplementedError, match="none of these"):
        run(added(lambda a, b: a - b), x, rows, updates)


def test_reductions_and_windows():
    x = torch.randn(2, 3, 6, 6)
    zero = lambda x: Op.zero(x.builder())  # noqa: E731
    check(lambda x: x.reduce(zero(x), Op.__add__, (1, 3)), lambda x: x.sum((1, 3)), x)
    check(lambda x: x.reduce_all(zero(x), Op.max), lambda x: x.clamp(min=0).max(), x)
    check(
        lambda x: x.reduce_window(zero(x), Op.__add__, (1, 1, 2, 2), (1, 1, 2, 2)),
        lambda x: torch.nn.functional.avg_pool2d(x, 2) * 4,
        x,
    )
    for kernel, stride in (((2, 2), (1, 1)), ((1, 1, 2, 2), (1, 1, 1, 1))):
        check(lambda x: x.max_pool(kernel, stride, 0, 1, (2, 3)), lambda x: torch.nn.functional.max_pool2d(x, 2, 1), x)  # noqa: B023
    with pytest.raises(ValueError, match="padding"):
        run(lambda x: x.max_pool((2, 2), (1, 1), 0, 1, (2, 3), "full"), x)


@pytest.mark.parametrize("scatter", [lambda a, b: a + b, lambda a, b: a + b * Op.scalar(a.builder(), 1.0)])
def test_gradient_of_a_max_pool(scatter):
    x = torch.randn(1, 2, 5, 5).requires_grad_()
    y = torch.nn.functional.max_pool2d(x, 3, 2, 1)
    gradient = torch.randn_like(y)
    (expected,) = torch.autograd.grad(y, x, gradient)
    padding = ((0, 0), (0, 0), (1, 1), (1, 1))

    def build(x, g):
        zero = Op.zero(x.builder())
        return x.select_and_scatter_with_general_padding(
            g, zero, (1, 1, 3, 3), (1, 1, 2, 2), Op.__ge__, scatter, padding
        )

    torch.testing.assert_close(run(build, x.detach(), gradient), expected)
    unpadded = torch.nn.functional.max_pool2d(x, 3, 2)
    (expected,) = torch.autograd.grad(unpadded, x, gradient[:, :, :2, :2])
    found = run(
        lambda x, g: x.select_and_scatter(g, Op.zero(x.builder()), (1, 1, 3, 3), (1, 1, 2, 2), Op.__ge__, scatter),
        x.detach(),
        gradient[:, :, :2, :2].contiguous(),
    )
    torch.testing.assert_close(found, expected)


def test_convolutions():
    x, w = torch.randn(2, 4, 7, 7), torch.randn(6, 4, 3, 3)
    conv2d = torch.nn.functional.conv2d
    check(lambda x, w: x.conv(w, (2, 2)), lambda x, w: conv2d(x, w, stride=2), x, w)
    check(
        lambda x, w: x.conv(w, (1, 1), feature_group_count=2, padding="same", precision_config="highest"),
        lambda x, w: conv2d(x, w, padding=1, groups=2),
        x,
        w[:, :2].contiguous(),
    )
    check(
        lambda x, w: x.conv_with_general_padding(w, (1, 1), ((2, 0), (1, 1))),
        lambda x, w: conv2d(torch.nn.functional.pad(x, (1, 1, 2, 0)), w),
        x,
        w,
    )
    last = {
        "input_batch_dimension": 0,
        "input_feature_dimension": 3,
        "kernel_input_feature_dimension": 2,
        "kernel_output_feature_dimension": 3,
        "output_batch_dimension": 0,
        "output_feature_dimension": 3,
        "input_spatial_dimensions": (1, 2),
        "kernel_spatial_dimensions": (0, 1),
        "output_spatial_dimensions": (1, 2),
    }

    def in_order(x, w, **options):
        return conv2d(x.permute(0, 3, 1, 2), w.permute(3, 2, 0, 1), **options).permute(0, 2, 3, 1).contiguous()

    x, w = x.permute(0, 2, 3, 1).contiguous(), w.permute(2, 3, 1, 0).contiguous()
    check(lambda x, w: x.conv_with_general_dimensions(w, (1, 1), **last), in_order, x, w)
    check(
        lambda x, w: x.conv_general(w, (1, 1), ((1, 1), (1, 1)), **last), lambda x, w: in_order(x, w, padding=1), x, w
    )
    check(
        lambda x, w: x.conv_general_dilated(w, (1, 1), ((0, 0), (0, 0)), (1, 1), (2, 2), **last),
        lambda x, w: in_order(x, w, dilation=2),
        x,
        w,
    )


def test_choices():
    x, y = torch.randn(3, 4), torch.randn(3, 4)
    check(lambda x, y: (x > y).select(x, y), torch.maximum, x, y)
    check(lambda x: x.clamp(Op.scalar(x.builder(), -0.5), Op.scalar(x.builder(), 0.5)), lambda x: x.clamp(-0.5, 0.5), x)
    for flag in (True, False):
        check(
            lambda k, x, y: k.mkconditional((x, y), lambda x, y: x + y, lambda x, y: x - y),
            lambda k, x, y: x + y if k else x - y,
            torch.tensor(flag),
            x,
            y,
        )
        check(
            lambda k, x, y: k.conditional(x, y, lambda x: x + x, lambda y: y * y),
            lambda k, x, y: x + x if k else y * y,
            torch.tensor(flag),
            x,
            y,
        )


def test_loops():
    def build(n, x):
        zero = Op.zero(n.builder(), xb.Type.S32)

        def body(i, n, x):
            return i + Op.one(i.builder(), xb.Type.S32), n, x + x

        return Op.mkwhile((zero, n, x), lambda i, n, x: i < n, body).get_tuple_element(2)

    check(build, lambda n, x: x * 2 ** int(n), torch.tensor(5, dtype=torch.int32), torch.randn(3))
    check(
        lambda x: x.while_loop(
            lambda x: x.reduce_all(Op.zero(x.builder()), Op.max) < Op.scalar(x.builder(), 100.0), lambda x: x + x
        ),
        lambda x: x * 64,
        torch.tensor([2.0, 3.0, 1.0]),
    )


def test_sort():
    x = torch.randint(0, 5, (3, 33)).float()
    check(lambda x: Op.sort((x,), Op.__lt__), lambda x: x.sort(1).values, x)
    check(lambda x: Op.sort((x,), Op.__gt__, 0), lambda x: x.sort(0, descending=True).values, x)
    place = torch.arange(33, dtype=torch.int32).repeat(3, 1)

    def with_places(x, place):  # equal ones keep their order
        values, order = x.sort(stable=True, dim=1)
        return [values, order.int()]

    check(lambda x, p: Op.sort((x, p), lambda a, b, p, q: a < b, 1, True), with_places, x, place)


def test_calls_and_maps():
    x, y = torch.randn(3, 4), torch.randn(3, 4)
    check(lambda x, y: Op.call(lambda a, b: a * b, (x, y)), torch.mul, x, y)
    check(lambda x, y: Op.map((x, y), lambda a, b: a * b + a, (0, 1)), lambda x, y: x * y + x, x, y)
    check(lambda x, k: Op.map((x,), lambda a, k: a * k, (0, 1), (k,)), lambda x, k: x * k, x, torch.tensor(3.0))
    with pytest.raises(ValueError, match="dimensions"):
        run(lambda x: Op.map((x,), lambda a: a, (1, 0)), x)


def test_leaves():
    values = torch.randn(2, 3)
    x = torch.zeros(2, 3)
    check(lambda x: Op.constant(x.builder(), values), lambda x: values, x)
    check(lambda x: x.scalar_like(2.5), lambda x: torch.full((2, 3), 2.5), x)
    check(lambda x: Op.iota(x.builder(), xb.mkshape("s32", (2, 3)), 1), lambda x: torch.arange(3).repeat(2, 1).int(), x)
    check(lambda x: xb.mkleaf("Constant", x.builder(), value=values), lambda x: values, x)
    check(lambda x: xb.mkop("Abs", (x.op,)), torch.abs, values)


def test_triangular_solve():
    a, b = torch.randn(3, 3).tril() + 3 * torch.eye(3), torch.randn(3, 2)
    check(
        lambda a, b: a.triangualr_solve(b, True, True, False, False),
        lambda a, b: torch.linalg.solve_triangular(a, b, upper=False),
        a,
        b,
    )
    check(
        lambda a, b: a.triangualr_solve(b, lower=True, transpose_a=True),
        lambda a, b: torch.linalg.solve_triangular(a.T, b, upper=True),
        a,
        b,
    )


def test_a_long_chain_is_no_recursion():
    builder = xb.create_builder("chain")
    x = xb.mkparam(builder, 0, xb.mkshape("f32", ()))
    one = Op.one(builder)
    for _ in range(2000):
        x = x + one
    (found,) = xb.xla_computation_as_func(x.build("chain"))([torch.zeros((), device="xla")])
    assert found.item() == 2000


def test_builders():
    one, other = xb.create_builder("one"), xb.create_builder("other")
    x = xb.mkparam(one, 0, xb.mkshape("f32", (2,)))
    assert x.builder() is one
    assert x.shape() == xb.mkshape("f32", (2,))
    with pytest.raises(ValueError, match="has a parameter 0"):
        xb.mkparam(one, 0, xb.mkshape("f32", (2,)))
    with pytest.raises(ValueError, match="is of 'other'"):
        x + xb.mkparam(other, 0, xb.mkshape("f32", (2,)))
    with pytest.raises(NotImplementedError, match="'Nothing'"):
        xb.mkop("Nothing", (x.op,))
    with pytest.raises(ValueError, match="builder="):
        xb.mkop("Tuple", ())
    y = xb.mkparam(one, 2, xb.mkshape("f32", (2,)))
    with pytest.raises(ValueError, match=r"expected parameters from 0 on, got \[0, 2\]"):
        (x + y).build("gap")


def test_registered_operators_are_built_once_for_each_kind_of_arguments():
    built = []

    def scaled(x, factor=1.0):
        built.append(factor)
        return x * Op.scalar(x.builder(), factor)

    operator = xor.register("scaled", scaled)
    x = torch.randn(3)
    for factor in (2.0, 2.0, 3.0):
        torch.testing.assert_close(operator(x.to("xla"), factor=factor).cpu(), x * factor)
    torch.testing.assert_close(operator(torch.ones(2, device="xla"), factor=2.0).cpu(), torch.full((2,), 2.0))
    assert built == [2.0, 3.0, 2.0]
    several = xor.Op("several", lambda x: Op.tuple((x, x + x)))
    assert [each.tolist() for each in several(torch.ones(1, device="xla"))] == [[1.0], [2.0]]


def test_registered_operators_can_be_printed(monkeypatch, capsys):
    monkeypatch.setenv("XLA_OP_PRINT_COMPUTATIONS", "1")
    xor.register("printed", lambda x: x + x)(torch.ones(3, device="xla"))
    assert "f32[3]" in capsys.readouterr().err


def test_functions_of_tuples():
    def pair(x, y, *, shift):
        return x + y, x - y + Op.scalar(x.builder(), shift)

    x, y = torch.randn(3), torch.randn(3)
    wrapped = Op.wrap_function(pair)
    for build in (lambda a, b: wrapped(a, b, shift=2.0), lambda a, b: wrapped(Op.tuple([a, b]), shift=2.0)):
        made = []
        total, difference = run(lambda a, b, build=build, made=made: (made.append(build(a, b)), made[0])[1], x, y)
        assert made[0].shape().is_tuple()
        torch.testing.assert_close(total, x + y)
        torch.testing.assert_close(difference, x - y + 2)
    single = Op.wrap_function(lambda a: a * a)
    check(single, lambda a: a * a, x)
