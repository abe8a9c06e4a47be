"""Random operators that are one formula on the bits of `philox.py`. Each takes a 64-bit seed that is an input of the
graph. `distributions.py` has those that reject and try again.

What torch checks of the numbers among the arguments is checked at each call, before it is recorded:
`random_arguments.py`.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import torch

from ...ir import dtypes
from ...lowering import checks, layout
from ...lowering.layout import ChannelsLast
from ..probe import last_integer, probed, quietly
from ..registry import op
from . import philox


def _sampled_in(dtype):
    """The dtype to compute a sample of `dtype` in: float32 for the 16-bit floats, as in torch."""
    return jnp.dtype(jnp.float64 if dtype in (jnp.float64, jnp.complex128) else jnp.float32)


def _floats(draw, seed, shape, dtype):
    """A sample of `draw(words, dtype)` with `dtype`; of complex numbers both parts are drawn, as in torch."""
    if not jnp.issubdtype(dtype, jnp.complexfloating):
        return draw(philox.Words(seed, shape), _sampled_in(dtype)).astype(dtype)
    parts = draw(philox.Words(seed, (*shape, 2)), _sampled_in(dtype))
    return jax.lax.complex(parts[..., 0], parts[..., 1])


# ---- uniform and normal


def _uniform(seed, shape, dtype, low=0.0, high=1.0):
    def draw(words, computed):
        start, end = jnp.asarray(low, computed), jnp.asarray(high, computed)
        sample = start + philox.uniform(words.a, words.b, computed) * (end - start)
        # what is rounded up to the excluded bound becomes the included one, as in torch
        narrow = computed if jnp.issubdtype(dtype, jnp.complexfloating) else dtype
        sample = sample.astype(narrow)
        return jnp.where(sample == end.astype(narrow), start.astype(narrow), sample)

    return _floats(draw, seed, shape, dtype)


def _normal(seed, shape, dtype, mean=0.0, std=1.0):
    is_complex = jnp.issubdtype(dtype, jnp.complexfloating)

    def draw(words, computed):
        scale = jnp.asarray(std, jnp.float64) / jnp.sqrt(2.0) if is_complex else std
        sample = philox.normal(words.a, words.b, computed)
        return jnp.asarray(mean, computed) + jnp.asarray(scale, computed) * sample

    return _floats(draw, seed, shape, dtype)


@op("aten::uniform", random=True, dynamic_scalars=True)
def uniform(x, low=0.0, high=1.0, *, generator=None, seed):
    return _uniform(seed, x.shape, x.dtype, low, high)


@op("aten::rand", random=True)
@op("aten::rand_like", random=True, infer=probed("aten::rand_like"))
@op("aten::rand_like.generator", random=True, infer=probed("aten::rand_like.generator"))
def rand(*args, out, seed, **options):
    return _uniform(seed, out.shape, dtypes.to_numpy(out.dtype))


@op("aten::normal_functional", random=True, dynamic_scalars=True)
def normal(x, mean=0.0, std=1.0, *, generator=None, seed):
    return _normal(seed, x.shape, x.dtype, mean, std)


@op("aten::randn", random=True)
@op("aten::randn_like", random=True, infer=probed("aten::randn_like"))
@op("aten::randn_like.generator", random=True, infer=probed("aten::randn_like.generator"))
def randn(*args, out, seed, **options):
    return _normal(seed, out.shape, dtypes.to_numpy(out.dtype))


@op("aten::normal.float_float", random=True)
def normal_float_float(mean, std, size, *, out, seed, **options):
    return _normal(seed, out.shape, dtypes.to_numpy(out.dtype), mean, std)


@op("aten::normal.Tensor_float", random=True, dynamic_scalars=True)
def normal_tensor_float(mean, std=1.0, *, generator=None, seed):
    return _normal(seed, mean.shape, mean.dtype, 0.0, std) + mean


def _normal_with_std(mean, std, out, seed):
    checks.require((std >= 0).all(), lambda _: RuntimeError("normal expects all elements of std >= 0.0"))
    dtype = dtypes.to_numpy(out.dtype)
    wide = jnp.promote_types(_sampled_in(dtype), dtype)
    sample = _normal(seed, out.shape, dtype).astype(wide) * std.astype(wide)
    return (sample.astype(dtype).astype(wide) + jnp.asarray(mean, wide)).astype(dtype)


@op("aten::normal.float_Tensor", random=True, fallible=True, infer=probed("aten::normal.float_Tensor"))
def normal_float_tensor(mean, std, *, generator=None, out, seed):
    return _normal_with_std(mean, std, out, seed)


def _like_mean(mean, std, *, generator=None):
    """Torch's meta kernel promotes the dtypes, which no other kernel does."""
    return mean.new_empty(torch.broadcast_shapes(mean.shape, std.shape))


@op("aten::normal.Tensor_Tensor", random=True, fallible=True, infer=probed("aten::normal.Tensor_Tensor", _like_mean))
def normal_tensor_tensor(mean, std, *, generator=None, out, seed):
    return _normal_with_std(mean, std, out, seed)


# ---- others with a density


@op("aten::exponential", random=True, dynamic_scalars=True)
def exponential(x, lambd=1.0, *, generator=None, seed):
    def draw(words, computed):
        return philox.exponential(words.a, words.b, computed) / jnp.asarray(lambd, computed)

    return _floats(draw, seed, x.shape, x.dtype)


@op("aten::cauchy", random=True, dynamic_scalars=True)
def cauchy(x, median=0.0, sigma=1.0, *, generator=None, seed):
    def draw(words, computed):
        # 1/tan and not tan, since a float resolves the angles next to 0 best: they make the far tails
        angle = jnp.asarray(jnp.pi, computed) * philox.centred(words.a, words.b, computed)
        return jnp.asarray(median, computed) + jnp.asarray(sigma, computed) / jnp.tan(angle)

    return _floats(draw, seed, x.shape, x.dtype)


@op("aten::log_normal", random=True, dynamic_scalars=True)
def log_normal(x, mean=1.0, std=2.0, *, generator=None, seed):
    return jnp.exp(_normal(seed, x.shape, _sampled_in(x.dtype), mean, std)).astype(x.dtype)


# ---- bernoulli and dropout


def _require_probabilities(p):
    error = (
        "Expected p_in >= 0 && p_in <= 1 to be true, but got false.  (Could this error message be improved?  If so, "
        "please report an enhancement request to PyTorch.)"
    )
    checks.require(((p >= 0) & (p <= 1)).all(), lambda _: RuntimeError(error))


@op("aten::bernoulli.p", random=True, dynamic_scalars=True)
def bernoulli_p(x, p=0.5, *, generator=None, seed):
    return philox.below(philox.Words(seed, x.shape), p).astype(x.dtype)


@op("aten::bernoulli", random=True, fallible=True, infer=probed("aten::bernoulli"))
def bernoulli(x, *, generator=None, seed):
    _require_probabilities(x)
    return philox.below(philox.Words(seed, x.shape), x).astype(x.dtype)


def _expanded_bernoulli(x, p, *, generator=None):
    p.expand(x.shape)
    return torch.empty_like(x)


@op("aten::bernoulli.Tensor", random=True, fallible=True, infer=probed("aten::bernoulli.Tensor", _expanded_bernoulli))
def bernoulli_tensor(x, p, *, generator=None, seed):
    _require_probabilities(p)
    return philox.below(philox.Words(seed, x.shape), jnp.broadcast_to(p, x.shape)).astype(x.dtype)


def _dropped(x, p, train):
    return torch.empty_like(x), torch.empty_like(x, dtype=torch.bool if x.numel() else x.dtype)


@op("aten::native_dropout", random=True, channels_last=True, infer=probed("aten::native_dropout", _dropped))
def native_dropout(x, p, train, *, out, seed):
    def drop(x):
        if train is False:  # None trains
            return x, jnp.ones(x.shape, bool)
        keep = philox.below(philox.Words(seed, x.shape), 1 - p)
        return _scaled(x * keep.astype(x.dtype), 0.0 if p == 1 else 1 / (1 - p)), keep

    images = isinstance(x, ChannelsLast)
    y, keep = drop(x.physical if images else x)
    keep = keep.astype(dtypes.to_numpy(out[1].dtype))
    return (ChannelsLast(y), ChannelsLast(keep)) if images else (y, keep)


def _scaled(x, scale):
    """`x` times a number, rounded once."""
    wide = jnp.promote_types(x.dtype, jnp.float32)
    return (x.astype(wide) * jnp.asarray(scale, wide)).astype(x.dtype)


def _infer_dropout_backward(grad, mask, scale):
    """The product, as torch's kernels have it. Its meta kernel goes by the gradient alone."""
    return grad * mask * scale


@op("aten::native_dropout_backward", channels_last=True, infer=_infer_dropout_backward)
def native_dropout_backward(grad, mask, scale, *, out):
    dtype = dtypes.to_numpy(out.dtype)  # a float also for integers
    return layout.elementwise(lambda grad, mask: grad.astype(dtype) * _scaled(mask.astype(dtype), scale), grad, mask)


def _with_noise(x, noise, *arguments, generator=None):
    noise.view(x.shape)
    return torch.empty_like(x), torch.empty_like(noise)


@op(
    "aten::rrelu_with_noise_functional", random=True,
    infer=probed("aten::rrelu_with_noise_functional", _with_noise),
)  # fmt: skip
def rrelu_with_noise(x, noise, lower=0.125, upper=1 / 3, training=False, generator=None, *, seed):
    if not training:
        return jnp.where(x <= 0, _scaled(x, (lower + upper) / 2), x), noise
    drawn = jnp.where(x <= 0, _uniform(seed, x.shape, x.dtype, lower, upper), 1).astype(x.dtype)
    return x * drawn, drawn


# ---- integers


def _integers(seed, shape, dtype, low, high):
    """Integers of [low, high), with `dtype`; without `high`, all from `low` on that an int64 can hold."""
    words = philox.Words(seed, shape)
    bits = philox.join(words.a, words.b)
    low = jnp.asarray(low, jnp.int64)
    # difference of 64-bit integers that wrap around; 0 stands for 2**64
    width = (jnp.asarray(-(2**63) if high is None else high, jnp.int64) - low).astype(jnp.uint64)
    offset = jnp.where(width == 0, bits, bits % jnp.maximum(width, 1))
    return (offset.astype(jnp.int64) + low).astype(dtype)


@op("aten::random", random=True)
def random(x, *, generator=None, seed):
    highest = last_integer(dtypes.to_torch(x.dtype))
    return _integers(seed, x.shape, x.dtype, 0, None if highest == 2**63 - 1 else highest + 1)


@op("aten::random.from", random=True, dynamic_scalars=True)
def random_from(x, low, high, *, generator=None, seed):
    return _integers(seed, x.shape, x.dtype, low, high)


@op("aten::random.to", random=True, dynamic_scalars=True)
def random_to(x, high, *, generator=None, seed):
    return _integers(seed, x.shape, x.dtype, 0, high)


@op("aten::randint", random=True)
def randint(high, size, *, out, seed, **options):
    return _integers(seed, out.shape, dtypes.to_numpy(out.dtype), 0, high)


@op("aten::randint.low", random=True)
def randint_low(low, high, size, *, out, seed, **options):
    return _integers(seed, out.shape, dtypes.to_numpy(out.dtype), low, high)


@op(
    "aten::randint_like", "aten::randint_like.generator", "aten::randint_like.Tensor",
    "aten::randint_like.Tensor_generator", random=True, dynamic_scalars=True,
)  # fmt: skip
def randint_like(x, high, *, out, seed, **options):
    return _integers(seed, out.shape, dtypes.to_numpy(out.dtype), 0, high)


@op("aten::randint_like.low_dtype", "aten::randint_like.low_generator_dtype", random=True, dynamic_scalars=True)
def randint_like_low(x, low, high, *, out, seed, **options):
    return _integers(seed, out.shape, dtypes.to_numpy(out.dtype), low, high)


@op("aten::geometric", random=True, dynamic_scalars=True)
def geometric(x, p, *, generator=None, seed):
    is_float = jnp.issubdtype(x.dtype, jnp.floating)
    computed = _sampled_in(x.dtype) if is_float else jnp.dtype(jnp.float64)
    words = philox.Words(seed, x.shape)
    sample = philox.exponential(words.a, words.b, computed) / jnp.asarray(-jnp.log1p(-jnp.asarray(p)), computed)
    sample = jnp.ceil(sample)
    return sample.astype(x.dtype) if is_float else sample.astype(jnp.int64).astype(x.dtype)  # wraps around, as in torch


def _permuted(n, *, generator=None, **options):
    dtype = options.get("dtype") or torch.int64
    # where the dtype does not hold all of them, torch says so before anything else
    kept = n if not dtype.is_complex and n > last_integer(dtype) + 1 else min(n, 1)
    quietly(torch.ops.aten.randperm.default, kept, dtype=dtype, device="cpu")
    return torch.empty(n, dtype=dtype, device="meta")


@op("aten::randperm", "aten::randperm.generator", random=True, infer=_permuted)
def randperm(n, *, generator=None, out, seed, **options):
    words = philox.Words(seed, (n,))
    order = jax.lax.sort((philox.join(words.a, words.b), jax.lax.iota(jnp.int64, n)), num_keys=1)[1]
    return order.astype(dtypes.to_numpy(out.dtype))
