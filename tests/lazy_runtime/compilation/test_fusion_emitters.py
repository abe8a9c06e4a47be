"""Which programs get which of XLA's code generators for the CPU."""

from __future__ import annotations

import jax
import numpy as np
import pytest
import torch

import lazy_runtime
from lazy_runtime.compilation import compiler, fusion_emitters

aten = torch.ops.aten

LARGE = fusion_emitters.LARGE
OPTION = fusion_emitters._OPTION


@pytest.fixture
def chosen(monkeypatch):
    """Whether each program that is compiled gets the newer one."""
    compiler.clear()
    found = []
    options = fusion_emitters.options

    def spy(graph, lowered):
        given = options(graph, lowered)
        # from jaxlib 0.11 on it is the only one; then the choice shows in what is asked alone
        found.append(given.get(OPTION, fusion_emitters._is_large(graph) and not fusion_emitters._updates(lowered)))
        return given

    monkeypatch.setattr(fusion_emitters, "options", spy)
    yield found
    compiler.clear()


def written_over_itself(x):
    """What the newer one would miscompile if our slices were written in place."""
    y = x[::2]
    y[1:] = y[:-1].clone()
    x[::2] = y
    return x


CASES = {
    "small": (lambda x: x.exp(), LARGE - 1, False),
    "large": (lambda x: x.exp(), LARGE, True),
    "large inside": (lambda x: x.exp().sum(), LARGE, True),
    "a slice is written": (written_over_itself, LARGE, True),
    "elements are written": (lambda x: x.index_put((torch.tensor([1, 5], device=x.device),), x[:2]), LARGE, False),
    "a diagonal is written": (lambda x: x.reshape(2, -1).diagonal_scatter(x[:2]), LARGE, False),
    "an embedding's gradients are added up": (
        lambda x: aten.embedding_dense_backward(x[:, None], torch.arange(9, device=x.device) // 2, LARGE, -1, False),
        9,
        True,
    ),
    "rows are added up": (lambda x: x.index_add(0, torch.tensor([1, 5], device=x.device), x[:2]), LARGE, False),
}


@pytest.mark.parametrize("name", CASES)
def test_lazily(chosen, name):
    function, size, expected = CASES[name]
    x = torch.linspace(0, 1, size)
    found = function(x.to("xla")).cpu()
    assert chosen[-1] is expected
    torch.testing.assert_close(found, function(x.clone()))


@pytest.mark.parametrize("name", CASES)
def test_compiled(chosen, name):
    function, size, expected = CASES[name]
    torch._dynamo.reset()
    x = torch.linspace(0, 1, size)
    found = torch.compile(function, backend="openxla")(x.clone())
    assert chosen[-1] is expected
    torch.testing.assert_close(found, function(x.clone()))


def test_a_step_is_looked_into(chosen):
    """The graphs of compiled calls are single calls of the step's."""
    torch._dynamo.reset()
    weight = torch.ones(LARGE).to("xla").requires_grad_()
    torch.compile(lambda x: (x.sin() * 2).sum(), backend="openxla")(weight).backward()
    assert torch.isfinite(weight.grad).all()
    assert chosen == [True]


def test_the_option_is_there_where_jaxlib_has_it():
    assert fusion_emitters.is_known(OPTION, False) is (jax.version.__version_info__ < (0, 11))
    assert not fusion_emitters.is_known("xla_nothing", True)


def test_a_program_without_our_option_is_compiled_once_and_refuses_the_users(monkeypatch):
    """As with jaxlib 0.11."""
    monkeypatch.setattr(fusion_emitters, "is_known", lambda option, value: False)
    compiler.clear()
    asked = []
    compile_ = jax.stages.Lowered.compile
    monkeypatch.setattr(
        jax.stages.Lowered,
        "compile",
        lambda self, compiler_options=None: asked.append(compiler_options) or compile_(self, compiler_options),
    )
    x = torch.linspace(0, 1, 8)
    torch.testing.assert_close((x.to("xla") * 3).cpu(), x * 3)
    double = lambda x: x * 2  # noqa: E731
    with pytest.raises(ValueError, match="custom_compile_options: XLA refuses 'xla_nothing'"):
        lazy_runtime.compile(double, custom_compile_options={"xla_nothing": 1})(x.to("xla"))
    compiler.clear()
    assert asked[0] is None
    assert asked.count({"xla_nothing": 1}) == 1
    assert not [given for given in asked if given and OPTION in given]


def shifted_within(x):
    y = x[::2]
    return x.at[::2].set(y.at[1:].set(y[:-1]))


def shifted_in_a_loop(x):
    return jax.lax.fori_loop(0, 3, lambda _, x: x.at[1:].set(x[:-1]).at[::2].set(x[::2]), x)


@pytest.mark.parametrize("function", [shifted_within, shifted_in_a_loop])
@pytest.mark.parametrize("donated", [(), (0,)])
def test_updates_that_read_what_they_write(function, donated):
    """What XLA's newer generator miscompiles is right with barriers, in every version of jaxlib."""
    x = np.linspace(0, 1, 1 << 12, dtype=np.float32)
    with jax.disable_jit():
        expected = np.asarray(function(jax.numpy.asarray(x)))
    lowered = jax.jit(function, donate_argnums=donated).lower(jax.numpy.asarray(x))
    fusion_emitters._keep_updates_apart(lowered)
    assert lowered.as_text().count("optimization_barrier") >= 2
    np.testing.assert_array_equal(np.asarray(lowered.compile()(jax.numpy.asarray(x))), expected)
