"""Recurrent layers, of few steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ..language import layer

if TYPE_CHECKING:
    from ..sketch import Sketch

STEPS = 3  # time steps at most


@layer(3)
def recurrent(s: Sketch, x: torch.Tensor) -> None:
    batch_first = s.odds(2)
    kind = s.one_of(["LSTM", "GRU", "RNN"])
    hidden = s.int(1, 4)
    options = f", batch_first={batch_first}"
    if s.odds(3):
        options += ", bidirectional=True"
    if s.odds(4):
        options += ", num_layers=2"
    if s.odds(5):
        options += ", bias=False"
    if kind == "LSTM" and hidden > 1 and s.odds(4):
        options += f", proj_size={s.int(1, hidden - 1)}"
    if kind == "RNN" and s.odds(2):
        options += ", nonlinearity='relu'"
    module = s.module(f"nn.{kind}({x.shape[2]}, {hidden}{options})")
    name = s.name("r")
    s.do(f"{name} = {module}(x[:, :{STEPS}] if {batch_first} else x[:{STEPS}])")
    s.do(s.one_of([f"x = {name}[0]", f"x = {name}[0]", f"x = {name}[1][0]" if kind == "LSTM" else f"x = {name}[1]"]))


@layer(3)
def cell(s: Sketch, x: torch.Tensor) -> None:
    """A cell in a loop over time; its states are stacked."""
    kind, hidden = s.one_of(["LSTMCell", "GRUCell", "RNNCell"]), s.int(1, 4)
    module = s.module(f"nn.{kind}({x.shape[2]}, {hidden})")
    state, every = s.name("c"), s.name("e")
    s.do(
        f"{state}, {every} = None, []",
        f"for part in x.unbind(1)[:{STEPS}]:",
        f"    {state} = {module}(part, {state})",
        f"    {every}.append({state}{'[0]' if kind == 'LSTMCell' else ''})",
        f"x = {s.one_of([f'torch.stack({every}, 1)', f'torch.cat({every}, -1)', f'{every}[-1]'])}",
    )


@layer(3)
def scan(s: Sketch, x: torch.Tensor) -> None:
    """A linear recurrence, written into its result in place or not."""
    decay = s.parameter(x.shape[2])
    state, out = s.name("c"), s.name("o")
    if s.odds(2):
        s.do(
            f"{state}, {out} = torch.zeros_like(x[:, 0]), []",
            f"for part in x.unbind(1)[:{STEPS}]:",
            f"    {state} = {decay}.sigmoid() * {state} + part",
            f"    {out}.append({state})",
            f"x = torch.stack({out}, 1)",
        )
    else:
        steps = min(STEPS, x.shape[1])
        s.do(
            f"{out} = torch.zeros_like(x[:, :{steps}])",
            f"for i in range({steps}):",
            f"    {out}[:, i] = x[:, i] + ({decay}.sigmoid() * {out}[:, i - 1].clone() if i else 0)",
            f"x = {out}",
        )
