"""Torch's kernels inside of XLA programs: every kind of argument, errors, and the modes of the calling thread."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from lazy_runtime.ir import dtypes, lowering_context
from lazy_runtime.lowering import aten_bridge
from lazy_runtime.lowering.layout import ChannelsLast, HeadsLast, Part
from tests import comma_locale, native_part

CPU = jax.devices("cpu")[0]
X = torch.linspace(-2, 3, 2 * 3 * 4 * 5).reshape(2, 3, 4, 5)

native_part.need_bridge()


def to_jax(x):
    with dtypes.x64():
        return jax.device_put(
            x.numpy() if x.dtype != torch.bfloat16 else jnp.asarray(x.float().numpy(), "bfloat16"), CPU
        )


def to_torch(x):
    return torch.from_numpy(np.asarray(x, dtype=np.float32 if x.dtype == jnp.bfloat16 else None).copy())


def program(name, arguments, results, *tensors):
    """A compiled program of one call. `arguments` and `results` are functions of the traced arrays."""

    def function(*arrays):
        made = aten_bridge.call(name, arguments(*arrays), results(*arrays))
        return [x.physical if isinstance(x, ChannelsLast | HeadsLast) else x for x in made if x is not None]

    with dtypes.x64():
        arrays = [to_jax(x) for x in tensors]
        return jax.jit(function).lower(*arrays).compile(), arrays


def call(name, arguments, results, *tensors):
    compiled, arrays = program(name, arguments, results, *tensors)
    return [to_torch(x) for x in compiled(*arrays)]


def like(*sizes, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(sizes, dtype)


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("aten::add.Tensor", lambda x: [x, x, 3], lambda x: x + 3 * x),
        ("aten::add.Tensor", lambda x: [x, x, -0.1], lambda x: x - 0.1 * x),
        ("aten::clamp", lambda x: [x, None, 0.3], lambda x: x.clamp(max=0.3)),
        ("aten::clamp", lambda x: [x, float("-inf"), 1e-300], lambda x: x.clamp(max=0.0)),
        ("aten::gelu", lambda x: [x, "tanh"], lambda x: torch.nn.functional.gelu(x, approximate="tanh")),
        ("aten::gelu", lambda x: [x, "none"], torch.nn.functional.gelu),
        ("aten::sum.dim_IntList", lambda x: [x, [1, -1], True, None], lambda x: x.sum((1, -1), keepdim=True)),
        ("aten::sum.dim_IntList", lambda x: [x, (1,), False, None], lambda x: x.sum(1)),
        ("aten::flip", lambda x: [x, []], lambda x: x),
        ("aten::cumsum", lambda x: [x, 2, None], lambda x: x.cumsum(2)),
        ("aten::where.self", lambda x: [x > 0, x, x * 2], lambda x: torch.where(x > 0, x, 2 * x)),
        ("aten::full_like", lambda x: [x, float("nan"), *[None] * 5], lambda x: torch.full_like(x, torch.nan)),
    ],
)
def test_arguments(name, arguments, expected):
    wanted = expected(X)
    (result,) = call(name, arguments, lambda x: [like(*wanted.shape)], X)
    torch.testing.assert_close(result, wanted, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_parts_of_a_buffer(dtype):
    x, buffer = torch.randn(3, 4).to(dtype), torch.randn(40).to(dtype)
    wanted = torch.nn.functional.linear(x, buffer[7:27].view(5, 4), buffer[31:36])

    def arguments(x, buffer):
        return [x, Part(buffer, 7, (5, 4)), Part(buffer, 31, (5,))]

    (result,) = call("aten::linear", arguments, lambda x, _: [like(3, 5, dtype=x.dtype)], x, buffer)
    torch.testing.assert_close(result, wanted.float() if dtype == torch.bfloat16 else wanted)


def test_lists_of_bools_images_and_undefined_results():
    weight = torch.linspace(-1, 1, 4 * 3 * 2 * 2).reshape(4, 3, 2, 2)
    grad = torch.linspace(0, 1, 2 * 4 * 3 * 4).reshape(2, 4, 3, 4)
    geometry = [[1, 1], [0, 0], [1, 1], False, [0, 0], 1]

    def images(grad, x, weight):
        return [ChannelsLast(jnp.moveaxis(grad, 1, -1)), ChannelsLast(jnp.moveaxis(x, 1, -1)), weight]

    for mask in ([True, False, True], [False, True, False]):
        wanted = torch.ops.aten.convolution_backward(grad, X, weight, [4], *geometry, mask)

        def arguments(*arrays, mask=mask):
            return [*images(*arrays), [4], *geometry, mask]

        def results(*arrays, mask=mask):
            kinds = [images(*arrays)[1], arrays[2], like(4)]
            return [kind if flag else None for kind, flag in zip(kinds, mask, strict=True)]

        made = call("aten::convolution_backward", arguments, results, grad, X, weight)
        if mask[0]:
            made[0] = made[0].movedim(-1, 1)
        # torch may compute what the mask does not ask for
        asked = [x for x, flag in zip(wanted, mask, strict=True) if flag]
        for result, expected in zip(made, asked, strict=True):
            # the same kernel on the same memory, but threads may split the sum in another way
            torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-5)


def test_several_results_of_several_dtypes():
    def image(x):
        return ChannelsLast(jnp.moveaxis(x, 1, -1))

    values, places = call(
        "aten::max_pool2d_with_indices",
        lambda x: [image(x), [2, 2], [2, 2], [0, 0], [1, 1], False],
        lambda x: [ChannelsLast(like(2, 2, 2, 3)), like(2, 3, 2, 2, dtype=jnp.int64)],
        X,
    )
    expected = torch.nn.functional.max_pool2d(X, 2, return_indices=True)
    assert torch.equal(values.movedim(-1, 1), expected[0])
    assert torch.equal(places, expected[1])


@pytest.mark.parametrize(
    "dtype",
    [
        torch.bool,
        torch.uint8,
        torch.int8,
        torch.int16,
        torch.int32,
        torch.int64,
        torch.float16,
        torch.bfloat16,
        torch.float32,
        torch.float64,
        torch.complex64,
        torch.complex128,
    ],
    ids=str,
)
def test_dtypes(dtype):
    x = torch.arange(6).reshape(2, 3).to(dtype)
    (result,) = call("aten::clone", lambda x: [x, None], lambda x: [x], x)
    assert torch.equal(result.to(dtype), x)
    if dtype != torch.bfloat16:  # numpy has none
        assert result.dtype == dtype


@pytest.mark.parametrize("argument", [object(), "a|b", {"a": 1}, [1j]], ids=["object", "bar", "dict", "complex"])
def test_arguments_that_it_cannot_pass(argument):
    with pytest.raises(TypeError, match="the ATen bridge takes no argument of type"):
        call("aten::clone", lambda x: [x, argument], lambda x: [x], X)


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("aten::mm", lambda x: [x[0, 0], x[0, 0]], r"shapes cannot be multiplied.*in aten::mm"),
        ("aten::cumsum", lambda x: [x, 9, None], r"Dimension out of range.*in aten::cumsum"),
        ("aten::no_such_operator", lambda x: [x], r"aten::no_such_operator"),
        ("aten::add.Tensor", lambda x: [x], r"takes 3 arguments, not 1.*in aten::add.Tensor"),
        ("aten::neg", lambda x: [x, 1], r"takes no argument i1.*in aten::neg"),
        ("aten::clone", lambda x: [x[0], None], r"aten::clone"),  # a result of another size than asked for
    ],
)
def test_an_error_inside_of_the_program_is_raised_with_the_operators_name(name, arguments, message):
    compiled, arrays = program(name, arguments, lambda x: [like(7, 7)], X)
    with pytest.raises(jax.errors.JaxRuntimeError, match=message):
        np.asarray(compiled(*arrays)[0])
    # the next program is none the worse for it
    (result,) = call("aten::neg", lambda x: [x], lambda x: [x], X)
    assert torch.equal(result, -X)


def test_the_modes_of_the_calling_thread_do_not_reach_the_kernel():
    """A small program runs in the thread that calls it."""
    x, y = torch.randn(8, 8), torch.randn(8, 8)
    compiled, arrays = program("aten::mm", lambda x, y: [x, y], lambda x, y: [x], x, y)
    (expected,) = compiled(*arrays)
    torch.testing.assert_close(to_torch(expected), x @ y, rtol=1e-5, atol=1e-5)  # sums in another order
    modes = [
        lambda: torch.autocast("cpu", dtype=torch.bfloat16),
        FakeTensorMode,
        torch.inference_mode,
        lambda: torch.device("meta"),
    ]
    for mode in modes:
        with mode():
            (result,) = compiled(*arrays)
            result = np.asarray(result)
        assert np.array_equal(result, np.asarray(expected))


def test_without_the_library_it_is_not_available(monkeypatch):
    def missing():
        raise aten_bridge.native.NativeError("no compiler")

    monkeypatch.setattr(aten_bridge.native, "bridge", missing)
    assert aten_bridge.is_built.__wrapped__() is False


# ---- results that kernels allocate


@pytest.fixture(scope="module")
def kernels():
    """Operators whose CPU kernels allocate in ways of their own."""
    library = torch.library.Library("lazy_runtime_tests", "FRAGMENT")

    def turned(x):
        made = torch.empty(x.shape)
        made.copy_(x)
        return made.t()

    def conjugated(x):
        return torch.empty(x.shape, dtype=x.dtype).copy_(x).conj()

    def negated(x):
        return torch.empty(x.shape, dtype=x.dtype).copy_(x)._neg_view()

    def swapped(x):
        first, second = torch.empty(x.shape), torch.empty(x.shape)
        first.copy_(x)
        second.copy_(-x)
        return second, first

    def after_a_temporary(x):
        temporary = torch.empty(x.shape).copy_(x)
        result = torch.empty(x.shape).copy_(temporary + 1)
        temporary.zero_()
        return result

    def resized(x):
        return torch.empty(0).resize_(x.shape).copy_(x)

    def exchanged(x):
        made = torch.empty(x.transpose(1, 2).shape).copy_(x.transpose(1, 2))
        addresses.append(made.data_ptr())
        return made.transpose(1, 2)

    def keeping(x):
        made = torch.empty(x.shape).copy_(x)
        addresses.append(made.data_ptr())
        held.extend([x, made])
        return made

    addresses, held = [], []
    for kernel in (turned, conjugated, negated, swapped, after_a_temporary, resized, exchanged, keeping):
        results = "(Tensor, Tensor)" if kernel is swapped else "Tensor"
        library.define(f"{kernel.__name__}(Tensor x) -> {results}")
        library.impl(kernel.__name__, kernel, "CPU")
    yield addresses, held
    library._destroy()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("turned", lambda x: [x.t()]),
        ("negated", lambda x: [-x]),
        ("swapped", lambda x: [-x, x]),
        ("after_a_temporary", lambda x: [x + 1]),
        ("resized", lambda x: [x]),
    ],
)
def test_where_a_kernel_allocates_its_results(kernels, name, expected):
    x = torch.arange(25.0).reshape(5, 5)
    results = call(f"lazy_runtime_tests::{name}", lambda x: [x], lambda x: [like(5, 5)] * len(expected(X[0, 0])), x)
    for found, wanted in zip(results, expected(x), strict=True):
        assert torch.equal(found, wanted)


def test_a_conjugate_view_of_where_the_result_belongs(kernels):
    x = torch.complex(torch.arange(4.0), torch.arange(4.0))
    (found,) = call("lazy_runtime_tests::conjugated", lambda x: [x], lambda x: [like(4, dtype=jnp.complex64)], x)
    assert torch.equal(found, x.conj())


def test_a_result_that_a_kernel_allocates_is_not_copied(kernels):
    addresses, _ = kernels
    x = torch.arange(25.0).reshape(5, 5)
    compiled, arrays = program("lazy_runtime_tests::keeping", lambda x: [x], lambda x: [like(5, 5)], x)
    (result,) = compiled(*arrays)
    result.block_until_ready()
    assert addresses.pop() == result.unsafe_buffer_pointer()


def test_heads_last(kernels):
    """The kernel sees them as torch does, and what it allocates as they lie is not copied."""
    addresses, _ = kernels
    x = torch.arange(24.0).reshape(2, 3, 4)
    compiled, arrays = program(
        "lazy_runtime_tests::exchanged", lambda x: [HeadsLast(x)], lambda x: [HeadsLast(like(2, 3, 4))], x
    )
    (result,) = compiled(*arrays)
    assert torch.equal(torch.from_dlpack(result), x)
    assert addresses.pop() == result.unsafe_buffer_pointer()


def test_what_a_kernel_keeps_is_its_own(kernels):
    _, held = kernels
    held.clear()
    x = torch.arange(25.0).reshape(5, 5)
    compiled, arrays = program("lazy_runtime_tests::keeping", lambda x: [x], lambda x: [like(5, 5)], x)
    (result,) = compiled(*arrays)
    result.block_until_ready()
    addresses = {result.unsafe_buffer_pointer(), arrays[0].unsafe_buffer_pointer()}
    assert addresses.isdisjoint(tensor.data_ptr() for tensor in held)
    assert all(torch.equal(tensor, x) for tensor in held)


@pytest.fixture(params=[False, True], ids=["in XLA's thread", "in a thread of their own"])
def whose_thread(request):
    """Programs whose calls stay in XLA's threads, or have a thread of their own."""
    with lowering_context.changed(has_kernel_thread=request.param):
        yield


def test_operators_that_go_on_in_place(whose_thread):
    def function(x):
        (made,) = aten_bridge.call(
            "aten::mul.Tensor", [x, 3.0], [x], [("aten::hardtanh_", [-1.0, 2.0]), ("aten::abs_", [])]
        )
        return made

    with dtypes.x64():
        found = jax.jit(function)(to_jax(X))
    assert torch.equal(to_torch(found), (X * 3).clamp(-1, 2).abs())


def test_an_error_of_a_kernel_is_the_program_s(whose_thread):
    def function(x, index):
        (made,) = aten_bridge.call("aten::index_select", [x, 0, index], [like(1, *X.shape[1:])])
        return made + 1

    with dtypes.x64():
        compiled = jax.jit(function).lower(to_jax(X), to_jax(torch.tensor([7]))).compile()
        with pytest.raises(jax.errors.JaxRuntimeError, match="index out of range"):
            jax.block_until_ready(compiled(to_jax(X), to_jax(torch.tensor([7]))))
        found = compiled(to_jax(X), to_jax(torch.tensor([1])))
    assert torch.equal(to_torch(found), X[1:2] + 1)


def test_kernels_within_loops_and_between_those_of_xla(whose_thread):
    x = torch.randn(300, 300, dtype=torch.float64) / 300

    def function(x):
        def step(_, y):
            (made,) = aten_bridge.call("aten::matmul", [jnp.sin(y), x], [y])
            return jax.lax.cond(made[0, 0] > 1e9, lambda y: y, jnp.cos, made)

        (first,) = aten_bridge.call("aten::exp", [x], [x])
        return jax.lax.fori_loop(0, 5, step, first)

    expected = x.exp()
    for _ in range(5):
        expected = (expected.sin() @ x).cos()
    with dtypes.x64():
        compiled = jax.jit(function).lower(to_jax(x)).compile()
        for _ in range(20):
            torch.testing.assert_close(to_torch(compiled(to_jax(x))), expected)


def test_programs_of_several_threads_at_once(whose_thread):
    x = torch.randn(200, 200)

    def function(x):
        for _ in range(5):
            (y,) = aten_bridge.call("aten::mm", [x, x], [x])
            (z,) = aten_bridge.call("aten::relu", [x], [x])
            x = jnp.tanh(y) + z
        return x

    with dtypes.x64():
        compiled = jax.jit(function).lower(to_jax(x)).compile()
        expected = to_torch(compiled(to_jax(x)))

    def run(_):
        with dtypes.x64():
            return to_torch(compiled(to_jax(x)))

    with ThreadPoolExecutor(8) as pool:
        for found in pool.map(run, range(100)):
            assert torch.equal(found, expected)


def test_a_program_that_runs_on_while_the_process_ends(forked_process):
    """What a handler uses is there until the end. Freed memory is filled, and the end drawn out, so that it shows.

    The program has two calls, since XLA runs one with less to do in the thread that starts it.
    """
    code = """
        import ctypes, threading, time
        import torch

        libc = ctypes.CDLL(None)
        libc.__cxa_atexit(libc.usleep, ctypes.c_void_p(300_000), None)  # runs after what is registered later

        import jax
        from lazy_runtime.lowering import aten_bridge
        from lazy_runtime.ir import dtypes, lowering_context

        assert aten_bridge.is_built()
        with dtypes.x64():
            x = jax.numpy.ones((50, 50), "float32")

            def step(_, x):
                (y,) = aten_bridge.call("aten::mm", [x, x], [x])
                (z,) = aten_bridge.call("aten::relu", [x], [x])
                return jax.numpy.tanh(y) + z

            program = jax.jit(lambda x: jax.lax.fori_loop(0, 10**8, step, x)).lower(x).compile()

        def run():
            with dtypes.x64():
                y = program(x)
            time.sleep(1e6)  # a thread that came back to Python now would end the process

        threading.Thread(target=run, daemon=True).start()
        time.sleep(0.5)
    """
    forked_process(code, MALLOC_PERTURB_="165")


def test_workers_are_released_and_come_back():
    x = torch.randn(400, 400)
    expected = x @ x
    aten_bridge.release_workers()
    assert torch.equal(x @ x, expected)
    aten_bridge.release_workers()
    aten_bridge.release_workers()


def test_numbers_do_not_depend_on_the_locale(forked_process, tmp_path):
    """A parser that follows the locale reads 0x1.8p-1 as 0 or as 1 where the decimal point is a comma."""
    code = f"""
        import locale
        import torch
        import torch.nn.functional as F

        locale.setlocale(locale.LC_NUMERIC, {comma_locale.NAME!r})
        assert locale.localeconv()["decimal_point"] == ","
        torch.manual_seed(0)
        q, k, v = torch.randn(3, 2, 4, 16, 8)
        image, weight = torch.randn(2, 16, 9, 9), torch.randn(32, 16, 1, 1)

        def f(q, k, v, image, weight):
            attended = F.scaled_dot_product_attention(q, k, v, scale=0.3)
            scaled = torch.addmm(q[0, 0], q[0, 1], k[0, 0, :8], alpha=0.3)
            return attended, F.hardtanh(F.conv2d(image, weight), -0.5, 0.5), F.celu(q, 1.7), scaled

        expected = f(q, k, v, image, weight)
        for road in (f, torch.compile(f, backend="openxla")):
            results = road(*(x.to("xla") for x in (q, k, v, image, weight)))
            for ours, theirs in zip(results, expected):
                torch.testing.assert_close(ours.cpu(), theirs, atol=1e-5, rtol=1e-5)
        with torch.no_grad():
            for ours, theirs in zip(torch.compile(f, backend="openxla")(q, k, v, image, weight), expected):
                torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
    """
    forked_process(code, **comma_locale.write(tmp_path))
