"""Margin losses over classes (LossMultiMargin.cpp, LossMultiLabelMargin.cpp), and their gradients."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import torch

from ...compat.torch import OpOverload
from ...lowering import checks
from ..indexing.indexing import IN_BOUNDS
from ..indexing.reduction import opmath
from ..registry import op
from .loss import MEAN, NONE, reduce

aten = torch.ops.aten


def _on_cpu(operator: OpOverload):
    """For `infer=`: the CPU kernel, whose shapes and errors are not the meta kernel's, on tensors without content."""

    def infer(*args: Any) -> Any:
        def stand_in(x: Any) -> Any:
            if not isinstance(x, torch.Tensor):
                return x
            # as a target -1 is the end of the labels, which spares the work
            fill = -1 if operator is aten.multilabel_margin_loss_forward.default else 0
            return torch.full(x.shape, fill, dtype=x.dtype, device="cpu")

        found = operator(*map(stand_in, args))
        return tuple(x.to("meta") for x in found) if isinstance(found, tuple) else found.to("meta")

    return infer


def _like_input(grad, x, *rest):
    return x.new_empty(x.shape)


def _rows(x):
    return opmath(x).reshape(-1, x.shape[-1] if x.ndim else 1)


def _scale(grad, x, reduction: int):
    """(samples, 1) the gradient of each sample's sum over the classes."""
    rows, classes = _rows(x).shape
    each = 1 / classes / (rows if reduction == MEAN else 1)
    return jnp.broadcast_to(opmath(grad).reshape(-1, 1) * each, (rows, 1))


# ---- one label


def _one_label(x, target, weight, margin):
    """By how much each class is within the margin of the label's score, which classes are not the label, and the
    label's weight.
    """
    x, target = _rows(x), target.reshape(-1, 1)
    checks.in_range(target, x.shape[1], lambda n: RuntimeError("target out of range"), lowest=0)
    away = margin - jnp.take_along_axis(x, target, 1, mode=IN_BOUNDS) + x
    others = jnp.arange(x.shape[1]) != target
    return away, others, 1 if weight is None else opmath(weight).at[target].get(mode=IN_BOUNDS)


@op("aten::multi_margin_loss", fallible=True, infer=_on_cpu(aten.multi_margin_loss.default))
def multi_margin_loss(x, target, p=1, margin=1, weight=None, reduction=MEAN, *, out):
    away, others, weight = _one_label(x, target, weight, margin)
    size = jnp.where(others & ~(away <= 0), away, 0)
    loss = jnp.sum((size if p == 1 else size * size) * weight, 1) / away.shape[1]
    return reduce(loss, reduction if len(loss) else NONE if len(out.shape) else 2).reshape(out.shape).astype(x.dtype)


@op("aten::multi_margin_loss_backward", fallible=True, infer=_like_input)
def multi_margin_loss_backward(grad, x, target, p, margin, weight=None, reduction=MEAN):
    away, others, weight = _one_label(x, target, weight, margin)
    slope = jnp.where(others & (away > 0), weight if p == 1 else 2 * away * weight, 0) * _scale(grad, x, reduction)
    return jnp.where(others, slope, -jnp.sum(slope, 1, keepdims=True)).reshape(x.shape).astype(x.dtype)


# ---- several labels, up to the first -1


def _several_labels(x, target, argument: str):
    """(samples, labels, classes) by how much each class that is no label is within the margin of each label's score,
    where the labels and classes are such, (samples, labels) the labels.
    """
    x, target = _rows(x), target.reshape(-1, x.shape[-1] if x.ndim else 1)
    classes = x.shape[1]
    message = f"argument {argument} 'target' is out of range"
    checks.in_range(target, classes, lambda n: RuntimeError(message), lowest=-1)
    listed = jnp.cumsum(target < 0, 1) == 0
    labels = jnp.clip(target, 0, max(classes - 1, 0))
    places = jnp.where(listed, labels, classes)
    is_label = jnp.zeros(x.shape, bool).at[jnp.arange(len(x))[:, None], places].set(True, mode="drop")
    away = 1 - jnp.take_along_axis(x, labels, 1)[:, :, None] + x[:, None, :]
    return away, listed[:, :, None] & ~is_label[:, None, :], labels, is_label


@op(
    "aten::multilabel_margin_loss_forward",
    fallible=True,
    infer=_on_cpu(aten.multilabel_margin_loss_forward.default),
)
def multilabel_margin_loss_forward(x, target, reduction, *, out):
    away, counts, _, is_label = _several_labels(x, target, "#2")
    loss = jnp.sum(jnp.where(counts & ~(away <= 0), away, 0), (1, 2)) / max(away.shape[2], 1)
    loss = reduce(loss, reduction if len(loss) else NONE if len(out[0].shape) else 2).reshape(out[0].shape)
    return loss.astype(x.dtype), is_label.reshape(out[1].shape).astype(x.dtype)


@op("aten::multilabel_margin_loss_backward", fallible=True, infer=_like_input)
def multilabel_margin_loss_backward(grad, x, target, reduction, is_target):
    away, counts, labels, _ = _several_labels(x, target, "#3")
    slope = jnp.where(counts & (away > 0), 1, 0).astype(away.dtype)
    rows = jnp.arange(len(labels))[:, None]
    slope = jnp.sum(slope, 1).at[rows, labels].add(-jnp.sum(slope, 2))
    return (slope * _scale(grad, x, reduction)).reshape(x.shape).astype(x.dtype)
