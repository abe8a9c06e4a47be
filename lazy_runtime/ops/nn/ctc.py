"""Connectionist temporal classification (Graves et al., 2006, section 4; LossCTC.cpp).

Between, before and after the `l` labels of a target stand blanks: `s = 2 l + 1` states. `log_alpha[b, t, s]` is the log
probability of all ways to be in state `s` at time `t`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import torch

from ...lowering import checks
from ..gradients import with_gradient
from ..indexing.indexing import IN_BOUNDS
from ..registry import op

aten = torch.ops.aten


class _Problem(NamedTuple):
    """What both directions start from.

    Attributes:
        labels: (batch, states) the class of each state.
        emitted: (time, batch, states) its log probability.
        skips: (batch, states) whether a state may follow the one before the last.
        steps: (batch,) input lengths.
        last: (batch,) number of the last state.
    """

    labels: Any
    emitted: Any
    skips: Any
    steps: Any
    last: Any


def _problem(log_probs, targets, input_lengths, target_lengths, blank: int) -> _Problem:
    steps, count = (jnp.asarray(x, jnp.int64).reshape(-1) for x in (input_lengths, target_lengths))
    width = targets.shape[-1] if isinstance(target_lengths, jax.Array) else max(target_lengths, default=0)
    place = jnp.arange(width)
    if targets.ndim == 1:  # one target behind the other
        start = jnp.cumsum(count) - count
        targets = jnp.take(targets, start[:, None] + place, mode="clip") if targets.size else targets.reshape(-1, 0)
        targets = jnp.broadcast_to(targets, (steps.size, width))
    targets = jnp.where(place < count[:, None], targets[:, :width], blank).astype(jnp.int64)
    labels = jnp.full((steps.size, 2 * width + 1), blank, jnp.int64).at[:, 1::2].set(targets)
    index = jnp.broadcast_to(labels, (log_probs.shape[0], *labels.shape))
    emitted = jnp.take_along_axis(log_probs, index, 2, mode=IN_BOUNDS)
    before = jnp.pad(labels, ((0, 0), (2, 0)), constant_values=blank)[:, : labels.shape[1]]
    skips = (labels != blank) & (labels != before) & (jnp.arange(labels.shape[1]) >= 2)
    return _Problem(labels, emitted, skips, steps, 2 * count)


def _shifted(x, by: int):
    """`x` moved along its last dimension, -inf where nothing moves to."""
    size = x.shape[-1]
    if by > 0:
        return jnp.pad(x, ((0, 0), (by, 0)), constant_values=-jnp.inf)[:, :size]
    return jnp.pad(x, ((0, 0), (0, -by)), constant_values=-jnp.inf)[:, -by:]


def _sum(*terms):
    """log(sum(exp)), -inf where all terms are."""
    greatest = jax.tree.reduce(jnp.maximum, terms)
    safe = jnp.where(jnp.isneginf(greatest), 0, greatest)
    return jnp.log(sum(jnp.exp(term - safe) for term in terms)) + safe


def _forward(problem: _Problem):
    """log_alpha, and minus the log probability of each target."""
    _, emitted, skips, steps, last = problem
    states = jnp.arange(emitted.shape[2])
    valid = states <= last[:, None]
    nothing = jnp.full(emitted.shape[1:], -jnp.inf, emitted.dtype)

    def step(alpha, now):
        alpha = _sum(alpha, _shifted(alpha, 1), jnp.where(skips, _shifted(alpha, 2), -jnp.inf)) + now
        alpha = jnp.where(valid, alpha, -jnp.inf)
        return alpha, alpha

    before = jnp.where(states == 0, jnp.zeros_like(nothing), nothing)  # so that states 0 and 1 may be the first
    _, alphas = jax.lax.scan(step, before, emitted)
    alphas = jnp.swapaxes(alphas, 0, 1)
    if not alphas.shape[1]:
        return alphas, jnp.where(last == 0, 0.0, jnp.inf).astype(emitted.dtype)
    end = jnp.take_along_axis(alphas, jnp.maximum(steps - 1, 0)[:, None, None], 1)[:, 0]
    final = jnp.where((states == last[:, None]) | (states == last[:, None] - 1), end, -jnp.inf)
    likelihood = jax.nn.logsumexp(final, 1)
    return alphas, jnp.where(steps > 0, -likelihood, jnp.where(last == 0, 0.0, jnp.inf)).astype(emitted.dtype)


def _backward(problem: _Problem):
    """(batch, time, states) log probabilities of all ways from a state at a time to the end."""
    _, emitted, skips, steps, last = problem
    states = jnp.arange(emitted.shape[2])
    ends = (states == last[:, None]) | (states == last[:, None] - 1)
    jumps = jnp.pad(skips, ((0, 0), (0, 2)))[:, 2:]
    valid = states <= last[:, None]

    def step(beta, now):
        time, emitted = now
        on = _sum(beta, _shifted(beta, -1), jnp.where(jumps, _shifted(beta, -2), -jnp.inf))
        start = jnp.where(ends, 0.0, -jnp.inf).astype(beta.dtype)
        beta = jnp.where(time == steps[:, None] - 1, start, on) + emitted
        beta = jnp.where(valid & (time < steps[:, None]), beta, -jnp.inf)
        return beta, beta

    nothing = jnp.full(emitted.shape[1:], -jnp.inf, emitted.dtype)
    _, betas = jax.lax.scan(step, nothing, (jnp.arange(emitted.shape[0]), emitted), reverse=True)
    return jnp.swapaxes(betas, 0, 1)


def _check(log_probs, targets, input_lengths, target_lengths):
    """The lengths, where they are data."""
    batch = log_probs.shape[1]
    least = "Expected {} to have value at least 0, but got value {} (while checking arguments for {})"
    most = "Expected input_lengths to have value at most {}, but got value {} (while checking arguments for {})"
    where = "ctc_loss_allocate_outputs"
    if not batch:
        return
    for name, lengths in (("input_lengths", input_lengths), ("target_lengths", target_lengths)):
        low = lengths.min()
        checks.require(low >= 0, lambda n, name=name: RuntimeError(least.format(name, n, where)), low)
    high, time = input_lengths.max(), log_probs.shape[0]
    checks.require(high <= time, lambda n: RuntimeError(most.format(time, n, where)), high)
    wanted = target_lengths.sum() if targets.ndim == 1 else target_lengths.max()
    have = targets.shape[-1]
    enough = wanted == have if targets.ndim == 1 else wanted <= have
    size = "size {}" if targets.ndim == 1 else "size at least {}"
    text = f"Expected tensor to have {size} at dimension {targets.ndim - 1}, but got size {have} for argument #2 "
    checks.require(
        enough, lambda n: RuntimeError(f"{text.format(n)}'targets' (while checking arguments for {where})"), wanted
    )


def _refuse_dtypes(log_probs, targets, *lengths: torch.Tensor) -> None:
    """Asks the CPU's kernel, of no step and no label; not of 16-bit floats, which XLA has and it has not."""
    if type(log_probs) is not torch.Tensor:  # fake
        return
    floats = torch.float32 if log_probs.dtype in (torch.bfloat16, torch.float16) else log_probs.dtype
    nothing = torch.zeros(1, 1, 1, dtype=floats, device="cpu"), torch.zeros(1, 0, dtype=targets.dtype, device="cpu")
    if lengths:
        aten._ctc_loss.Tensor(*nothing, *(torch.zeros(1, dtype=x.dtype, device="cpu") for x in lengths))
    else:
        aten._ctc_loss.default(*nothing, [0], [0])


def _infer(log_probs, targets, input_lengths, target_lengths, blank=0, zero_infinity=False):
    _refuse_dtypes(log_probs, targets)
    return aten._ctc_loss.default(log_probs, targets, input_lengths, target_lengths, blank, zero_infinity)


def _infer_with_tensors(log_probs, targets, input_lengths, target_lengths, blank=0, zero_infinity=False):
    """Torch has no meta kernel: the number of states is in the lengths. Here as many as the targets could have."""
    if log_probs.is_cpu:
        return aten._ctc_loss.Tensor(log_probs, targets, input_lengths, target_lengths, blank, zero_infinity)
    _refuse_dtypes(log_probs, targets, input_lengths, target_lengths)
    steps, time, classes = log_probs.shape[1], log_probs.shape[0], log_probs.shape[2]
    if not 0 <= blank < classes:
        raise RuntimeError("blank must be in label range")
    for name, lengths in (("input_lengths", input_lengths), ("target_lengths", target_lengths)):
        if lengths.numel() != steps:
            raise RuntimeError(f"{name} must be of size batch_size")
    return log_probs.new_empty(steps), log_probs.new_empty(steps, time, 2 * targets.shape[-1] + 1)


_LENGTHS = ("input_lengths", "target_lengths")


@op("aten::_ctc_loss", infer=_infer)
@op("aten::_ctc_loss.Tensor", fallible=True, host_inputs=_LENGTHS, infer=_infer_with_tensors)
def ctc_loss(log_probs, targets, input_lengths, target_lengths, blank=0, zero_infinity=False):
    are_data = isinstance(input_lengths, jax.Array)
    if are_data:
        _check(log_probs, targets, input_lengths, target_lengths)
    lengths = (input_lengths, target_lengths)
    constants = () if are_data else lengths

    def compute(log_probs, targets, *lengths):
        alphas, loss = _forward(_problem(log_probs, targets, *(lengths or constants), blank=blank))
        return loss, alphas

    def gradient(cotangents, results, *operands):  # right behind a log_softmax alone, as torch's is
        return (ctc_loss_backward(cotangents[0], *operands, *constants, *results, blank, zero_infinity),)

    return with_gradient(compute, gradient)(log_probs, targets, *(lengths if are_data else ()))


def _like_input(grad, log_probs, *rest):
    return log_probs.new_empty(log_probs.shape)


@op("aten::_ctc_loss_backward", "aten::_ctc_loss_backward.Tensor", host_inputs=_LENGTHS, infer=_like_input)
def ctc_loss_backward(
    grad, log_probs, targets, input_lengths, target_lengths, loss, log_alpha, blank, zero_infinity=False
):
    problem = _problem(log_probs, targets, input_lengths, target_lengths, blank)
    through = log_alpha + _backward(problem)
    greatest = jnp.max(through, 2, keepdims=True, initial=-jnp.inf)
    safe = jnp.where(jnp.isneginf(greatest), 0, greatest)
    chosen = (problem.labels[..., None] == jnp.arange(log_probs.shape[2])).astype(through.dtype)
    of_class = jnp.log(jnp.einsum("bts,bsc->btc", jnp.exp(through - safe), chosen, precision="highest")) + safe
    spent = jnp.swapaxes(of_class, 0, 1) + loss[:, None] - log_probs
    result = (jnp.exp(log_probs) - jnp.exp(spent)) * grad[:, None]
    outside = jnp.asarray(np.arange(log_probs.shape[0]))[:, None] >= problem.steps
    if zero_infinity:
        outside = outside | jnp.isposinf(loss)
    return jnp.where(outside[..., None], 0, result).astype(log_probs.dtype)
