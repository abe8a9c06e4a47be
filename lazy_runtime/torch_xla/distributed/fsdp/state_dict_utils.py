"""From the ranks' parts of a model to one state dict, as the module without FSDP has it."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from glob import glob
from typing import Any

import torch

__all__ = ["consolidate_sharded_model_checkpoints", "consolidate_sharded_state_dicts"]

#: Parts of names that come of the wrapping.
_WRAPPERS = ("_fsdp_wrapped_module.", "_fpw_module.")


def consolidate_sharded_state_dicts(
    state_dict_list: Sequence[Mapping[str, torch.Tensor]], shard_metadata: Mapping[str, Any]
) -> OrderedDict[str, torch.Tensor]:
    """The state dict of the module without FSDP.

    Args:
        state_dict_list: `state_dict()` of each rank, in the ranks' order.
        shard_metadata: `get_shard_metadata()` of any rank, of this package or of PyTorch/XLA.

    Raises:
        ValueError: there are not as many state dicts as there were ranks.
    """
    if len(state_dict_list) != shard_metadata["world_size"]:
        raise ValueError(
            f"expected {shard_metadata['world_size']} state dicts, one of each rank, got {len(state_dict_list)}"
        )
    sharded = {
        _joined(prefix, suffix): (_joined(prefix, info["_orig_name"]), tuple(info["_orig_size"]))
        for prefix, infos in shard_metadata["shard_info"].items()
        for suffix, info in infos.items()
    }
    flat = shard_metadata.get("flatten_info", {})
    buffers = shard_metadata.get("buffer_info", {})
    found: OrderedDict[str, torch.Tensor] = OrderedDict()
    for name, tensor in state_dict_list[0].items():
        if name not in sharded:
            found[_plain(name)] = tensor.to(buffers[name]["_orig_dtype"]) if name in buffers else tensor
            continue
        full_name, size = sharded[name]
        full = _full([state_dict[name] for state_dict in state_dict_list], size)
        if full_name not in flat:
            found[_plain(full_name)] = full
            continue
        names, shapes, counts = flat[full_name]
        prefix = full_name.rpartition(".")[0]
        for each, shape, part in zip(names, shapes, full.split(list(counts)), strict=True):
            found[_plain(_joined(prefix, each))] = part.view(shape)
    return found


def _full(parts: Sequence[torch.Tensor], size: tuple[int, ...]) -> torch.Tensor:
    """The parts side by side, without what fills the last of them up."""
    whole = torch.cat(list(parts))
    if whole.dim() == 1:
        return whole[: math.prod(size)].view(size)
    return whole[: size[0]]


def _joined(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix else name


def _plain(name: str) -> str:
    for wrapper in _WRAPPERS:
        name = name.replace(wrapper, "")
    return name


def consolidate_sharded_model_checkpoints(
    ckpt_prefix: str, ckpt_suffix: str = "*.pth", save_path: str = "", save_model: bool = True
) -> tuple[OrderedDict[str, torch.Tensor], str | None]:
    """The state dict of the module without FSDP, from the ranks' files. Each is a dict with `"model"`, the rank's
    `state_dict()`, and `"shard_metadata"`, its `get_shard_metadata()`.

    Args:
        ckpt_prefix, ckpt_suffix: together a pattern of the files' names (`glob`).
        save_path: where a dict with `"model"` is saved; by default the prefix with `_consolidated.pth`.
        save_model: whether to save it.

    Returns:
        the state dict, and where it was saved, if it was.

    Raises:
        FileNotFoundError: no file has such a name.
        ValueError: the files are not one of each rank.
    """
    pattern = ckpt_prefix + ckpt_suffix
    paths = sorted(glob(pattern))
    if not paths:
        raise FileNotFoundError(f"there is no checkpoint {pattern}")
    checkpoints = [torch.load(path, map_location="cpu") for path in paths]
    checkpoints.sort(key=lambda each: each["shard_metadata"]["rank"])
    ranks = [each["shard_metadata"]["rank"] for each in checkpoints]
    count = checkpoints[0]["shard_metadata"]["world_size"]
    if ranks != list(range(count)):
        raise ValueError(f"expected a file of each of {count} ranks in {pattern}, got those of the ranks {ranks}")
    found = consolidate_sharded_state_dicts([each["model"] for each in checkpoints], checkpoints[0]["shard_metadata"])
    saved_to = None
    if save_model:
        saved_to = save_path or f"{ckpt_prefix}_consolidated.pth"
        torch.save({"model": found}, saved_to)
    return found, saved_to
