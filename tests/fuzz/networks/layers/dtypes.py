"""Changes of dtype that lose nothing which a later layer could amplify."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ..language import ANY, layer

if TYPE_CHECKING:
    from ..sketch import Sketch


@layer(*ANY)
def through_another_dtype(s: Sketch, x: torch.Tensor) -> None:
    s.do(
        s.one_of(
            [
                "x = x * (x > 0).to(x.dtype)",
                "x = x * (x > 0).long()",
                "x = x + (x > 0).sum(-1, keepdim=True)",
                "x = x * (x.detach() * 4).round().clamp(-9, 9).to(torch.int32)",
                "x = x * x.detach().sign().to(torch.int8)",
                "x = x + (x > 0).any(-1, keepdim=True).double()",
                "x = x / (x.detach() > 0).float().sum().clamp(min=1)",
                f"x = x * torch.arange({x.shape[-1]}, device=x.device)",
                "x = torch.complex(x, x.tanh()).abs()",
                "x = (x * torch.ones((), dtype=torch.complex128, device=x.device)).real",
                "x = x * torch.full((), 2, device=x.device)",
                "x = x + x.argmax().double() * 0.1",
                "x = x * torch.ones(1, dtype=torch.float32, device=x.device)",
                "x = x.bool().double() * x",
            ]
        )
    )


@layer(*ANY)
def through_float32(s: Sketch, x: torch.Tensor) -> None:
    """Rounding to float32 makes the comparison of the whole program a coarse one."""
    s.do(s.one_of(["x = x.float().double()", "x = x.to(torch.float32).tanh().to(torch.float64)"]))
