"""Shardings as pictures of characters: which devices have which part of a tensor."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import numpy as np
import torch

from .op_sharding import OpSharding
from .sharding_type import ShardingType


def construct_v1_sharding_str(t: torch.Tensor) -> str:
    """How a tensor is sharded, with all devices listed: `{devices=[2,1]0,1}`; empty if it is not."""
    from ....tensor import sharding
    from .xla_sharding import unwrap_sharded_tensor

    return sharding.text(unwrap_sharded_tensor(t))


def of_text(text: str) -> OpSharding:
    """The sharding that XLA writes so.

    Raises:
        ValueError: it is none.
    """
    if text == "{replicated}":
        return OpSharding([], [], [], ShardingType.REPLICATED)
    found = _FORM.fullmatch(text)
    if found is None:
        raise ValueError(f"expected a sharding such as {{devices=[2,1]0,1}} or {{replicated}}, got {text!r}")
    devices = np.array([int(number) for number in found["devices"].split(",")])
    tiles = devices.reshape([int(number) for number in found["tiles"].split(",")])
    return OpSharding(tiles, [], [], ShardingType.PARTIAL if found["partial"] else ShardingType.TILED)


def visualize_tensor_sharding(t: torch.Tensor, **kwargs: Any) -> str:
    """Prints how a tensor of one or two dimensions is sharded, and returns what it printed.

    Args:
        kwargs: see `visualize_sharding`.

    Raises:
        ValueError: the tensor has more dimensions.
    """
    from ....tensor import sharding
    from .xla_sharding import unwrap_sharded_tensor

    return visualize_sharding(sharding.text(unwrap_sharded_tensor(t)), **kwargs)


def visualize_sharding(
    sharding: str, use_color: bool = True, scale: float = 1.0, min_width: int = 9, max_width: int = 80
) -> str:
    """Prints how a sharding of one or two dimensions cuts a tensor, and returns what it printed: a box for each part,
    with the devices that have it.

    Args:
        sharding: as `XLAShardedTensor.sharding_spec` has it; empty for a tensor that is not sharded.
        use_color: accepted for PyTorch/XLA's sake.
        scale: by how much the boxes are wider than their text needs.
        min_width: of a box, in characters.
        max_width: of all boxes of a row together; what does not fit is cut off.

    Raises:
        ValueError: it is none, or one of more dimensions.
    """
    from ....platform import hardware, xla_devices

    kind = hardware.kind(xla_devices.get(0))
    tiles = _tiles(sharding, len(xla_devices.get(0).jax_devices))
    texts = [[f"{kind} {','.join(map(str, cell))}" for cell in row] for row in tiles.cells]
    longest = max(len(text) for row in texts for text in row)
    width = max(min_width, round(scale * (longest + 2)))
    width = max(3, min(width, (max_width - 1) // len(texts[0]) - 1))
    picture = _drawn([[text[:width].center(width) for text in row] for row in texts], width)
    print(picture)
    return picture


class _Tiles(NamedTuple):
    cells: list[list[list[int]]]  # rows and columns of parts, each with the devices that have it


_FORM = re.compile(r"\{devices=\[(?P<tiles>[\d,]+)\](?P<devices>[\d,]+)(?P<partial> last_tile_dim_replicate)?\}")


def _tiles(sharding: str, count: int) -> _Tiles:
    if sharding in ("", "{replicated}"):
        return _Tiles([[list(range(count))]])
    found = _FORM.fullmatch(sharding)
    if found is None:
        raise ValueError(f"expected a sharding such as {{devices=[2,1]0,1}} or {{replicated}}, got {sharding!r}")
    tiles = [int(number) for number in found["tiles"].split(",")]
    devices = torch.tensor([int(number) for number in found["devices"].split(",")], device="cpu")
    copies = tiles.pop() if found["partial"] else 1
    if len(tiles) > 2:
        raise ValueError(f"only shardings of one or two dimensions can be drawn, {sharding} has {len(tiles)}")
    rows, columns = tiles if len(tiles) == 2 else (1, tiles[0])
    return _Tiles(devices.reshape(rows, columns, copies).tolist())


def _drawn(rows: list[list[str]], width: int) -> str:
    line = "─" * width
    columns = len(rows[0])
    borders = [f"{left}{joint.join([line] * columns)}{right}" for left, joint, right in ("┌┬┐", "├┼┤", "└┴┘")]
    top, between, bottom = borders
    drawn = [f"│{'│'.join(row)}│" for row in rows]
    return "\n".join([top, *f"\n{between}\n".join(drawn).split("\n"), bottom])
