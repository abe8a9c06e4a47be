"""What tests of graphs share: the program of a function."""

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from lazy_runtime.platform import xla_devices
from openxla_backend.graph import fx


def traced(gm, *arguments, **options):
    return fx.trace(gm, arguments, xla_devices.get(torch.device("xla:0")), **options)


def program(function, *arguments, mode="fake", **options):
    """The program of what the function does on these arguments."""
    return traced(make_fx(function, tracing_mode=mode)(*arguments), *arguments, **options)
