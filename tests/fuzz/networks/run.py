"""Trains a network by eager PyTorch on the CPU and on all roads of this package; says what differs and who is right.

The comparison is one of float64 numbers. Two correct roads add in another order, so each number may differ by rounding:
`RTOL` of its tensor's largest magnitude. Some networks amplify rounding: a bias before a batch norm has a gradient of
noise, which Rprop makes a step of full length. How much a program amplifies is measured: eager PyTorch trains it again
with operators that round otherwise, and what changes then is not held against a road.
"""

from __future__ import annotations

import contextlib
import copy
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from ..difference import Difference, failure, forget_what_is_pending, kind_of
from .language import Program
from .rounding import Rounding
from .training import train

#: (device, what is compiled) by road.
ROADS = {
    "lazy": ("xla:0", ""),
    "model": ("xla:0", "model"),
    "step": ("xla:0", "step"),
    "cpu-model": ("cpu", "model"),
    "cpu-step": ("cpu", "step"),
}

RTOL = 1e-9  # some 10,000 roundings of float64, less than any wrong formula differs by
RTOL_FLOAT32 = 1e-5  # of a program that rounds to float32: some 100 of its roundings
#: What a program has that rounds to float32. Torch's kernel of Hardsigmoid's gradient does (docs/operators.md).
ROUNDING_TO_FLOAT32 = ("float", "Hardsigmoid")
PERTURBATIONS = 3
DOUBTS = 9  # how many more perturbations judge a difference
AMPLIFIED = 100.0  # times what other roundings change
#: Of a step of the optimizer: torch counts steps in float32 where they are counted on the device (`capturable`, and all
#: compiled optimizers), and 1 - 0.999**t of float32 is off by 6e-5 at first.
STEP_NOISE = 1e-6
#: Of the largest gradient, or weight: smaller ones are compared as if they were so large. A bias before a norm has a
#: gradient of rounding alone, and so have its weight and the optimizer's state after some steps from 0.
FLOOR = 1e-3


def check(program: Program, roads: Sequence[str] = tuple(ROADS)) -> Difference | None:
    """The first difference between eager PyTorch and these roads."""
    with _as_fuzzed():
        return _check(program, roads)


@contextlib.contextmanager
def _as_fuzzed() -> Iterator[None]:
    """What a program changes globally is undone."""
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("ignore")
        yield


def _check(program: Program, roads: Sequence[str]) -> Difference | None:
    expected = _outcome(program, "cpu")
    known: dict[bool, dict[str, float]] = {}
    for road in roads:
        tolerances = None
        if not isinstance(expected, Exception):
            kind = road.endswith("step")
            tolerances = known.get(kind) or _tolerances(program, expected, road)
            known[kind] = tolerances
        device, compiled = ROADS[road]
        got = _outcome(program, device, compiled)
        found = _difference(expected, got, tolerances)
        if isinstance(got, Exception):
            forget_what_is_pending()
        elif found is not None and tolerances is not None:
            # three perturbations may miss a rare coincidence, such as a sum of exactly 0
            doubts = _tolerances(program, expected, road, range(PERTURBATIONS, PERTURBATIONS + DOUBTS))
            tolerances = {name: max(allowed, doubts[name]) for name, allowed in tolerances.items()}
            found = _difference(expected, got, tolerances)
        if found is None:
            continue
        if compiled and (theirs := _torchs_own(program, compiled, expected, tolerances)):
            return found._replace(road="torch", kind=f"compiled: {found.kind}", text=f"{found.text}\n# {theirs}")
        found = found._replace(road=road)
        if found.kind.startswith("gradient") or (" after " in found.kind):
            return _decided(program, found)
        return found
    return None


def _outcome(program: Program, device: str, compiled: str = "", **options: Any) -> dict[str, torch.Tensor] | Exception:
    try:
        return train(program.load(), device, compiled, **options)
    except Exception as error:
        return error


# ---- comparing


def _tolerances(
    program: Program, expected: dict[str, torch.Tensor], road: str, numbers: Iterable[int] = range(PERTURBATIONS)
) -> dict[str, float]:
    """How far each number may be from eager's on a road."""
    rtol = RTOL_FLOAT32 if _rounds_to_float32(program) else RTOL
    gradient = max((_largest(x) for name, x in expected.items() if name.startswith("gradient")), default=0.0)
    weight = max((_largest(x) for name, x in expected.items() if name.endswith(" steps")), default=0.0)
    floors = {name: _floor(name, gradient, weight) for name in expected}
    allowed = {name: rtol * max(_largest(x), floors[name]) for name, x in expected.items()}
    steps = STEP_NOISE if "capturable" in program.source or road.endswith("step") else 0.0
    for number in numbers:
        with Rounding(number << 20, keeps_ties=number % 3 > 0, gives_zeros=number % 3 == 1):
            other = _outcome(program, "cpu", prepare=_noisy_steps(number, steps) if steps else None)
        if isinstance(other, dict):
            for name in allowed.keys() & other.keys():
                allowed[name] += AMPLIFIED * _distance(expected[name], other[name])
    return allowed


def _floor(name: str, gradient: float, weight: float) -> float:
    """As what magnitude smaller numbers of this name are compared.

    Args:
        gradient: the largest magnitude of any gradient.
        weight: the same of any weight.
    """
    if name.startswith("gradient") or " of parameter " in name:
        return FLOOR * gradient
    return FLOOR * weight if name.endswith(" steps") else 0.0


def _rounds_to_float32(program: Program) -> bool:
    network = program.source.partition("class Net")[2].partition("def batch")[0].replace("float64", "")
    return any(each in network for each in ROUNDING_TO_FLOAT32)


def _noisy_steps(seed: int, noise: float) -> Callable[..., None]:
    """Makes each step of an optimizer longer or shorter, by a relative noise."""

    def prepare(model: torch.nn.Module, optimizer: Any) -> None:
        generator = torch.Generator().manual_seed(seed)
        parameters, before = list(model.parameters()), []
        optimizer.register_step_pre_hook(lambda *_: before.extend(p.detach().clone() for p in parameters))

        @torch.no_grad()
        def after(*_: Any) -> None:
            for p, old in zip(parameters, before, strict=True):
                p.add_((p - old) * torch.randn(p.shape, dtype=p.dtype, generator=generator) * noise)
            before.clear()

        optimizer.register_step_post_hook(after)

    return prepare


def _largest(x: torch.Tensor) -> float:
    finite = x[x.isfinite()] if x.numel() else x
    return float(finite.abs().max()) if finite.numel() else 0.0


def _distance(x: torch.Tensor, y: torch.Tensor) -> float:
    """The largest difference; infinite where the two are not alike, but for two NaN."""
    if x.shape != y.shape or x.dtype != y.dtype:
        return float("inf")
    if not x.numel():
        return 0.0
    x, y = x.double(), y.double()
    same = (x == y) | (x.isnan() & y.isnan())
    distance = torch.where(same, 0.0, (x - y).abs()).nan_to_num(float("inf"), posinf=float("inf"))
    return float(distance.max())


def _difference(expected: Any, got: Any, tolerances: dict[str, float] | None) -> Difference | None:
    if isinstance(expected, Exception) or isinstance(got, Exception):
        if type(expected) is type(got):
            return None
        if isinstance(expected, Exception) and isinstance(got, Exception):
            # a compiler wraps what the program raises
            return None if type(expected).__name__ in f"{got!r} {got.__cause__!r}" else failure(got)
        if isinstance(got, Exception):
            return failure(got)
        return Difference("", kind_of(f"nothing raised: {expected!r}"), f"nothing raised, but on the CPU {expected!r}")
    assert tolerances is not None
    for name, wanted in expected.items():
        if name not in got and name.startswith("the result"):
            continue  # not of this road
        if name not in got:
            return Difference("", f"missing {kind_of(name)}", f"no {name}")
        found = got[name]
        if name.startswith(("step of", "mu_product", "eta of", "mu of", "ax of")):  # their dtypes follow the device
            found = found.to(wanted.dtype).reshape(wanted.shape)
            if _distance(wanted, found) <= 1e-5 * _largest(wanted):
                continue
        distance = _distance(wanted, found)
        if distance > tolerances[name]:
            kind = (
                "gradient" if name.startswith("gradient") else "loss" if name.startswith("loss of") else kind_of(name)
            )
            kind = " after N steps" if kind.endswith(" steps") else kind
            text = f"{name}: {_shown(wanted)} on the CPU, {_shown(found)} here: {distance:.1e} > {tolerances[name]:.1e}"
            return Difference("", kind, text)
    return None


def _shown(x: torch.Tensor) -> str:
    return f"{tuple(x.shape)} {x.dtype} {x.flatten()[:6].tolist()}"


def _torchs_own(program: Program, compiled: str, expected: Any, tolerances: dict[str, float] | None) -> str:
    """How Dynamo or AOTAutograd changes what the program means by itself, on CPU tensors; "" if they do not.

    A difference of theirs may still be one that this package can mend: each kind is to be looked at.
    """
    for backend in ("eager", "aot_eager"):
        found = _difference(expected, _outcome(program, "cpu", compiled, backend=backend), tolerances)
        if found is not None:
            return f"{backend} differs from eager PyTorch too, {found.kind}: {found.text}"
    return ""


# ---- who is right


def _decided(program: Program, found: Difference) -> Difference:
    """Asks finite differences of the loss which of the gradients is right."""
    device, compiled = ROADS[found.road]
    try:
        eager, here = _gradients(program, "cpu", ""), _gradients(program, device, compiled)
    except Exception as error:
        return found._replace(text=f"{found.text}\n# no gradients to decide by: {error!r}")
    scale = max([_largest(x) for x in eager.values()] + [1e-300])
    worst = max(eager, key=lambda name: _distance(eager[name], here[name]))
    if _distance(eager[worst], here[worst]) <= 1e-7 * scale:
        return found._replace(text=f"{found.text}\n# the gradients of the first step are the same")
    direction = here[worst] - eager[worst]
    direction = direction / direction.norm()
    slope = _slope(program, worst, direction)
    ours, theirs = (float((x[worst] * direction).sum()) for x in (here, eager))
    text = f"{found.text}\n# {worst}, finite differences {slope:.9g}, eager {theirs:.9g}, here {ours:.9g}"
    if abs(slope - ours) < 0.01 * abs(slope - theirs):
        return Difference("torch", f"torch's {found.kind}", text)
    return found._replace(text=text)


def _gradients(program: Program, device: str, compiled: str) -> dict[str, torch.Tensor]:
    """The gradients of `backward` at the start, of all parameters and the input."""
    names = program.load()
    torch.manual_seed(0)
    model = names.Net().double().to(device)
    x, target = names.batch(0)
    x = x.detach().to(device).requires_grad_(x.is_floating_point())
    backward = torch.compile(names.backward, backend="openxla") if compiled == "step" else names.backward
    forward = torch.compile(model, backend="openxla") if compiled == "model" else model
    backward(forward, x, target.to(device))
    found = {name: p.grad for name, p in [*model.named_parameters(), ("the input", x)]}
    return {name: gradient.detach().cpu() for name, gradient in found.items() if gradient is not None}


def _slope(program: Program, name: str, direction: torch.Tensor) -> float:
    """The derivative of what `backward` goes back from, along a direction of a parameter: central differences, of two
    widths, extrapolated.
    """
    names = program.load()
    torch.manual_seed(0)
    start = names.Net().double()
    x, target = names.batch(0)

    def loss(distance: float) -> float:
        model, total = copy.deepcopy(start), 0.0
        moved = x.detach().clone()
        with torch.no_grad():
            if name == "the input":
                moved += distance * direction
            else:
                model.get_parameter(name).add_(distance * direction)
        losses: list[torch.Tensor] = []
        original = torch.Tensor.backward
        torch.Tensor.backward = lambda self, *_, **__: losses.append(self.detach())  # type: ignore[method-assign]
        try:
            names.backward(model, moved, target)
        finally:
            torch.Tensor.backward = original  # type: ignore[method-assign]
        for value in losses:
            total += float(value)
        return total

    wide, narrow = ((loss(h) - loss(-h)) / (2 * h) for h in (2e-5, 1e-5))
    return narrow + (narrow - wide) / 3
