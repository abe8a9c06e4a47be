"""How networks are trained: optimizers, schedules, and what a step does beside them."""

from __future__ import annotations

import random
from collections.abc import Callable


def _options(rng: random.Random, **choices: list[str]) -> str:
    """Some of the options, each with one of its values."""
    drawn = [f"{name}={rng.choice(values)}" for name, values in choices.items() if rng.randrange(2)]
    return "".join(f", {option}" for option in drawn)


_FLAGS = ["True", "False"]


def _implementation(rng: random.Random, *names: str) -> str:
    """At most one of the options that choose an implementation."""
    name = rng.choice(["", "", *names])
    if name == "capturable":  # torch refuses it on the CPU
        return ', capturable=device != "cpu"'
    return f", {name}={rng.choice(_FLAGS)}" if name else ""


def _groups(rng: random.Random, made: str) -> str:
    """The optimizer of all parameters, or of two groups with rates of their own."""
    if rng.randrange(3):
        return f"parameters = model.parameters()\nreturn {made}"
    return (
        "every = list(model.parameters())\n"
        'parameters = [{"params": every[:1]}] + [{"params": every[1:], "lr": 0.003}] * (len(every) > 1)\n'
        f"return {made}"
    )


def _maker(
    name: str, rates: list[str], implementations: tuple[str, ...], **choices: list[str]
) -> Callable[[random.Random], str]:
    def make(rng: random.Random) -> str:
        options = _options(rng, **choices)
        if name == "SGD" and "nesterov=True" in options and "momentum=0.9" not in options:
            options = options.replace(", nesterov=True", "")
        if name == "SGD" and "dampening=0.5" in options:
            options = options.replace(", nesterov=True", "")
        options += _implementation(rng, *implementations)
        return _groups(rng, f"torch.optim.{name}(parameters, lr={rng.choice(rates)}{options})")

    return make


_DECAY = ["0.1", "0.01"]
_BETAS = ["(0.8, 0.9)", "(0.0, 0.99)"]
_ALL = ("foreach", "fused", "capturable")
_SOME = ("foreach", "capturable")

#: The body of `optimizer_of(model, device)`.
OPTIMIZERS: dict[str, Callable[[random.Random], str]] = {
    "SGD": _maker(
        "SGD",
        ["0.1", "0.01"],
        ("foreach", "fused"),
        momentum=["0.9"],
        nesterov=_FLAGS,
        weight_decay=_DECAY,
        dampening=["0.5"],
        maximize=["True"],
    ),
    "Adam": _maker(
        "Adam", ["0.01"], _ALL, amsgrad=_FLAGS, weight_decay=_DECAY, betas=_BETAS, eps=["1e-4"], maximize=["True"]
    ),
    "AdamW": _maker("AdamW", ["0.01"], _ALL, amsgrad=_FLAGS, weight_decay=_DECAY, betas=_BETAS, eps=["1e-4"]),
    "RMSprop": _maker(
        "RMSprop", ["0.01"], _SOME, centered=_FLAGS, momentum=["0.9"], weight_decay=_DECAY, alpha=["0.8"]
    ),
    "Adagrad": _maker("Adagrad", ["0.05"], ("foreach", "fused"), lr_decay=["0.1"], weight_decay=_DECAY),
    # torch refuses its `capturable` on xla devices
    "Adadelta": _maker("Adadelta", ["1.0"], ("foreach",), rho=["0.8"], weight_decay=_DECAY),
    "Rprop": _maker("Rprop", ["0.01"], _SOME, etas=["(0.4, 1.3)"], step_sizes=["(1e-5, 1.0)"]),
    "Adamax": _maker("Adamax", ["0.01"], _SOME, betas=_BETAS, weight_decay=_DECAY),
    "NAdam": _maker("NAdam", ["0.01"], _SOME, weight_decay=_DECAY, decoupled_weight_decay=_FLAGS),
    "RAdam": _maker("RAdam", ["0.01"], _SOME, weight_decay=_DECAY, decoupled_weight_decay=_FLAGS),
    # with `capturable` it multiplies weights by a float32 number near 1, which torch computes otherwise on the CPU
    "ASGD": _maker("ASGD", ["0.05"], ("foreach",), lambd=["0.1"], t0=["1"], weight_decay=_DECAY),
}


def SCHEDULERS(rng: random.Random) -> str:
    """A learning rate schedule; warm-up from 0 is among them."""
    name = "torch.optim.lr_scheduler."
    return name + rng.choice(
        [
            "StepLR(optimizer, 1, 0.5)",
            "ExponentialLR(optimizer, 0.7)",
            "CosineAnnealingLR(optimizer, 3)",
            "LambdaLR(optimizer, lambda step: step / 2)",
            "LinearLR(optimizer, 0.25, total_iters=2)",
        ]
    )


def _clip(rng: random.Random) -> str:
    return rng.choice(
        [
            "nn.utils.clip_grad_norm_(model.parameters(), 0.5)",
            "nn.utils.clip_grad_norm_(model.parameters(), 0.5, norm_type=1.0)",
            'nn.utils.clip_grad_norm_(model.parameters(), 0.5, norm_type=float("inf"), foreach=False)',
            "nn.utils.clip_grad_value_(model.parameters(), 0.1)",
        ]
    )


def _zero(rng: random.Random) -> str:
    return rng.choice(["optimizer.zero_grad(set_to_none=False)", "model.zero_grad()"])


#: Further features of a training, by the place in the source that they fill.
OPTIONS: dict[str, Callable[[random.Random], str]] = {
    "clip": _clip,
    "zero": _zero,
    "accumulate": lambda rng: "(loss_of(model(x), target) * 0.5).backward()",
    "schedule": lambda rng: "",
    "eval": lambda rng: "",
}
