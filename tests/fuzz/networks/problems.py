"""What networks are trained on: inputs, targets and losses."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from .sketch import Sketch

# ---- inputs: the source that makes `x`, and an example. Batches of one are drawn often.


def _batch_size(s: Sketch) -> int:
    return s.one_of([1, 1, 2, 2, 3])


def _random(s: Sketch, *shape: int) -> tuple[str, torch.Tensor]:
    """A tensor with any layout and, at times, a gradient."""
    order = list(range(len(shape)))
    if s.odds(2):
        s.rng.shuffle(order)
    stored = tuple(shape[dim] for dim in order)
    back = tuple(order.index(dim) for dim in range(len(shape)))
    layout = f".permute({back})" if order != sorted(order) else ""
    if s.odds(8):  # a part of a larger tensor
        stored = (*stored[:-1], stored[-1] + 1)
        layout = f"[..., 1:]{layout}"
    source = f"x = torch.randn({stored}, dtype=torch.float64){layout}"
    if s.odds(4):
        source += ".requires_grad_()"
    scope = {"torch": torch}
    exec(source, scope)
    x = scope["x"]
    assert isinstance(x, torch.Tensor)
    return source, x.detach()


def _vectors(s: Sketch) -> tuple[str, torch.Tensor]:
    return _random(s, _batch_size(s), s.int(1, 6))


def _sequences(s: Sketch) -> tuple[str, torch.Tensor]:
    return _random(s, _batch_size(s), s.int(1, 6), s.int(1, 6))


def _images(s: Sketch) -> tuple[str, torch.Tensor]:
    return _random(s, _batch_size(s), s.int(1, 4), s.int(1, 6), s.int(1, 6))


def _volumes(s: Sketch) -> tuple[str, torch.Tensor]:
    return _random(s, _batch_size(s), s.int(1, 2), s.int(1, 4), s.int(1, 4), s.int(1, 4))


def _tokens(s: Sketch) -> tuple[str, torch.Tensor]:
    """Numbers of words, which an embedding takes first."""
    words, width = s.int(2, 6), s.int(1, 6)
    options = s.one_of(["", "", ", padding_idx=1", ", scale_grad_by_freq=True", ", max_norm=1.0"])
    shape = (_batch_size(s), s.int(1, 5))
    s.do(f"x = {s.module(f'nn.Embedding({words}, {width}{options})')}(x)")
    return f"x = torch.randint(0, {words}, {shape})", torch.randint(0, words, shape)


def _bags(s: Sketch) -> tuple[str, torch.Tensor]:
    words, width = s.int(2, 6), s.int(1, 6)
    options = s.one_of(['"sum"', '"mean"', '"max"'])
    shape = (_batch_size(s), s.int(1, 5))
    s.do(f"x = {s.module(f'nn.EmbeddingBag({words}, {width}, mode={options})')}(x)")
    return f"x = torch.randint(0, {words}, {shape})", torch.randint(0, words, shape)


DATA: dict[str, Callable[[Sketch], tuple[str, torch.Tensor]]] = {
    "vectors": _vectors,
    "sequences": _sequences,
    "images": _images,
    "images of a network with a stem": _images,
    "volumes": _volumes,
    "tokens": _tokens,
    "bags": _bags,
}

# ---- losses: the target's source and the body of `loss_of`


def _regression(rng: random.Random, y: torch.Tensor) -> tuple[str, str]:
    function = rng.choice(["mse_loss", "smooth_l1_loss", "huber_loss", "l1_loss", "soft_margin_loss"])
    reduction = rng.choice(["mean", "mean", "sum"])
    target = f"torch.randn({tuple(y.shape)}, dtype=torch.float64)"
    if function == "soft_margin_loss":
        target += ".sign()"
    return target, f'return F.{function}(y, target, reduction="{reduction}")'


def _classification(rng: random.Random, y: torch.Tensor) -> tuple[str, str]:
    if y.dim() < 2:
        return _regression(rng, y)
    shape = (y.shape[0], *y.shape[2:])
    options = rng.choice(["", "", ", label_smoothing=0.1", ", ignore_index=0", ', reduction="sum"'])
    if rng.randrange(4) == 0:
        target = f"torch.randn({tuple(y.shape)}, dtype=torch.float64).softmax(1)"
        return target, "return F.cross_entropy(y, target)"
    target = f"torch.randint(0, {y.shape[1]}, {shape})"
    if "ignore" in options:  # at least one target counts
        target = f"torch.randint({min(1, y.shape[1] - 1)}, {y.shape[1]}, {shape})"
        options = ", ignore_index=-1"
    if rng.randrange(3) == 0:
        return target, "return F.nll_loss(F.log_softmax(y, 1), target)"
    return target, f"return F.cross_entropy(y, target{options})"


def _binary(rng: random.Random, y: torch.Tensor) -> tuple[str, str]:
    target = f"torch.rand({tuple(y.shape)}, dtype=torch.float64)"
    loss = rng.choice(
        [
            "F.binary_cross_entropy_with_logits(y, target)",
            "F.binary_cross_entropy(y.sigmoid(), target)",
            "F.kl_div(y.log_softmax(-1), target.softmax(-1), reduction='batchmean')",
            "F.poisson_nll_loss(y.tanh(), target)",
            "F.gaussian_nll_loss(y, target, y.square() + 0.1)",
        ]
    )
    return target, f"return {loss}"


def _plain(rng: random.Random, y: torch.Tensor) -> tuple[str, str]:
    loss = rng.choice(
        [
            "y.mean()",
            "(y * target).sum()",
            "y.square().mean()",
            "y.pow(4).sum().sqrt()",
            "(y - target).norm()",
            "(y - target).abs().amax()",
            "y.var() + y.mean()" if y.numel() > 1 else "y.sum()",
            "y.logsumexp(-1).sum()" if y.dim() else "y.sum()",
            "torch.stack([part.square().mean() for part in y.unbind(0)]).sum()" if y.dim() else "y.sum()",
        ]
    )
    return f"torch.randn({tuple(y.shape)}, dtype=torch.float64)", f"return {loss}"


def _embeddings(rng: random.Random, y: torch.Tensor) -> tuple[str, str]:
    target = f"torch.randn({tuple(y.shape)}, dtype=torch.float64)"
    loss = rng.choice(
        [
            "(1 - F.cosine_similarity(y.flatten(1), target.flatten(1))).mean()",
            "F.pairwise_distance(y.flatten(1), target.flatten(1)).mean()",
            "F.triplet_margin_loss(y.flatten(1), target.flatten(1), target.flatten(1).flip(0) + 1)",
            "torch.cdist(y.flatten(1), target.flatten(1)).mean()",
            "F.hinge_embedding_loss(y, target.sign())",
        ]
    )
    return target, f"return {loss}" if y.dim() > 1 else "return F.mse_loss(y, target)"


LOSSES: dict[str, Callable[[random.Random, torch.Tensor], tuple[str, str]]] = {
    "regression": _regression,
    "classification": _classification,
    "binary": _binary,
    "plain": _plain,
    "embeddings": _embeddings,
}
