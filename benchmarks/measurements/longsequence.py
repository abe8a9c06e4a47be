"""Memory of attention over a long sequence, whose scores alone would take more than is allowed."""

from __future__ import annotations

import resource
from typing import Any, NamedTuple

import torch
from tabulate import tabulate
from torch.nn.functional import scaled_dot_product_attention

import lazy_runtime

from . import fresh

#: Of one sequence; of grouped queries a quarter of the heads have keys and values.
TOKENS, HEADS, FEATURES = 8192, 8, 64

#: What a process may take beyond what it takes for a short sequence.
MOST = 2 << 30

SHORT = 256

FORMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"is_causal": True},
    "mask": {},
    "dropout": {"dropout_p": 0.1},
    "grouped queries": {"enable_gqa": True},
}
MODES = {"eager": ("cpu", False), "lazy": ("xla", False), "openxla": ("xla", True)}


class Peak(NamedTuple):
    """Bytes that a process had in memory at most.

    Attributes:
        short: through a short sequence, which brings up devices and compilers.
        long: through the long one.
    """

    short: int
    long: int


def here(form: str, mode: str, backward: bool, dtype: str) -> Peak:
    """Attention of a short and then of a long sequence in this process."""
    _attend(form, mode, backward, dtype, SHORT)
    short = _peak()
    _attend(form, mode, backward, dtype, TOKENS)
    return Peak(short, _peak())


def _peak() -> int:
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _attend(form: str, mode: str, backward: bool, dtype: str, tokens: int) -> None:
    device, is_compiled = MODES[mode]
    torch.manual_seed(0)

    def random(heads: int) -> torch.Tensor:
        made = torch.randn(1, heads, tokens, FEATURES, device=device, dtype=getattr(torch, dtype))
        return made.requires_grad_(backward)

    few = HEADS // 4 if form == "grouped queries" else HEADS
    query, key, value = random(HEADS), random(few), random(few)
    options = dict(FORMS[form])
    if form == "mask":
        options["attn_mask"] = torch.rand(tokens, tokens, device=device) < 0.9
    attend: Any = scaled_dot_product_attention
    if is_compiled:
        torch.compiler.reset()
        attend = torch.compile(attend, backend="openxla", dynamic=False)
    with torch.set_grad_enabled(backward):
        result = attend(query, key, value, **options)
        if backward:
            result.sum().backward()
    if device == "xla":
        lazy_runtime.sync(wait=True)
    wanted = [result, *(each.grad for each in (query, key, value) if each.grad is not None)]
    if not all(bool(each.isfinite().all()) for each in wanted):
        raise RuntimeError(f"attention ({form}, {mode}) of {tokens} tokens is not finite")


def table(modes: list[str], dtypes: list[str]) -> str:
    """Megabytes of each form, forward alone and with its backward pass."""
    body = []
    for form in FORMS:
        for dtype in dtypes:
            for mode in modes:
                row: list[Any] = [form, dtype, mode]
                worst = 0
                for backward in (False, True):
                    peak = Peak(*fresh.call(here, form, mode, backward, dtype))
                    worst = max(worst, peak.long - peak.short)
                    row += [(peak.long - peak.short) / 2**20, peak.long / 2**20]
                body.append([*row, "" if mode == "eager" else "met" if worst <= MOST else "missed"])
    headers = ["form", "dtype", "mode", "forward, MiB", "whole process", "and backward, MiB", "whole process"]
    headers.append(f"at most {MOST >> 20}")
    text = tabulate(body, headers=headers, tablefmt="github", floatfmt=".0f")
    scores = 4 * HEADS * TOKENS**2 / 2**20
    return (
        f"### Memory of attention over {TOKENS} tokens, {HEADS} heads of {FEATURES} features\n\n{text}\n\n"
        f"What a process takes at most, beyond what it took at most for {SHORT} tokens, inputs and results included. "
        f"The scores in float32 alone would be {scores:.0f} MiB."
    )
