"""PyTorch/XLA's FSDP on ranks, against one process on the CPU with the whole batch."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import lazy_runtime
from lazy_runtime.torch_xla import _XLAC
from lazy_runtime.torch_xla.core import xla_model as xm
from lazy_runtime.torch_xla.distributed import fsdp
from lazy_runtime.torch_xla.distributed.fsdp import XlaFullyShardedDataParallel as FSDP
from lazy_runtime.torch_xla.distributed.fsdp import checkpoint_module, consolidate_sharded_ckpts
from lazy_runtime.torch_xla.distributed.fsdp import xla_fully_sharded_data_parallel as module
from lazy_runtime.torch_xla.distributed.fsdp.wrap import always_wrap_policy

STEPS = 3


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(4, 7)  # 35 elements: no number of ranks divides them
        self.inner = nn.Sequential(nn.Linear(7, 7), nn.LayerNorm(7), nn.ReLU())
        self.last = nn.Linear(7, 2)
        self.register_buffer("shift", torch.full((2,), 0.5))

    def forward(self, x, *, scale=1.0):
        return self.last(self.inner(torch.tanh(self.first(x)))) * scale + self.shift


def batch(step: int) -> torch.Tensor:
    return torch.randn(8, 4, generator=torch.Generator().manual_seed(step))


def mine(x: torch.Tensor) -> torch.Tensor:
    count = len(x) // xm.xrt_world_size()
    return x[count * xm.get_ordinal() :][:count].to("xla")


def alone() -> list[tuple[float, float]]:
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    found = []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = model(batch(step)).pow(2).mean()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        found.append((loss.item(), norm.item()))
    return found


def wrapped(inner: dict[str, Any] | None = None, is_checkpointed: bool = False, **options: Any) -> FSDP:
    model = Net()
    options = {"disable_reshard_on_root": False, **options}
    model.inner = FSDP(checkpoint_module(model.inner) if is_checkpointed else model.inner, **options)
    return FSDP(model, **options)


def train(is_checkpointed: bool, options: dict[str, Any]) -> list[tuple[float, float]]:
    model = wrapped(is_checkpointed=is_checkpointed, **options)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    found = []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = model(mine(batch(step))).pow(2).mean()
        loss.backward()
        norm = model.clip_grad_norm_(0.5)
        optimizer.step()
        mean = xm.all_reduce(xm.REDUCE_SUM, loss.detach(), 1 / xm.xrt_world_size())
        lazy_runtime.sync()
        found.append((mean.item(), norm.item()))
    return found


def check(found: list[tuple[float, float]], rtol: float = 1e-4) -> None:
    torch.testing.assert_close(torch.tensor(found), torch.tensor(alone()), rtol=rtol, atol=1e-5)


@pytest.mark.parametrize(
    ("is_checkpointed", "options"),
    [
        (False, {}),
        (True, {}),
        (False, {"flatten_parameters": True}),
        (False, {"shard_param_on_dim_0": True, "reshard_after_forward": False}),
        (False, {"optimization_barrier_in_forward": False, "optimization_barrier_in_backward": False}),
        (False, {"_use_xla_patched_linear": True, "_shard_size_multiple": 4, "_debug_print": True}),
    ],
)
def test_training(ranks, is_checkpointed, options):
    for found in ranks(2)(train, is_checkpointed, options):
        check(found)


def test_training_in_bfloat16(ranks):
    options = {"compute_dtype": torch.bfloat16, "fp32_reduce_scatter": True}
    for found in ranks(2)(train, False, options):
        check(found, rtol=0.1)  # bfloat16 has 8 bits, and AdamW's first steps are signs of gradients


def test_one_rank():
    check(train(False, {}))
    check(train(True, {"flatten_parameters": True}))


def accumulated() -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    model, plain = wrapped(), Net()
    with model.no_sync():
        model(mine(batch(0))).pow(2).mean().backward()
    without = [each.grad for each in model.parameters()]
    assert without == [None] * len(without)
    model(mine(batch(1)), scale=2.0).pow(2).mean().backward()
    (plain(batch(0)).pow(2).mean() + plain(batch(1), scale=2.0).pow(2).mean()).backward()
    state = [{name: each.grad for name, each in model.named_parameters()}]
    whole = fsdp.consolidate_sharded_state_dicts
    gathered = [
        {name: xm.all_gather(gradient)[rank * len(gradient) :][: len(gradient)] for name, gradient in state[0].items()}
        for rank in range(2)
    ]
    found = whole(gathered, model.get_shard_metadata())
    return [found[name].cpu() for name, _ in plain.named_parameters()], [each.grad for each in plain.parameters()]


def test_gradients_of_several_batches(ranks):
    for found, expected in ranks(2)(accumulated):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


def saved(folder: str, options: dict[str, Any]) -> dict[str, Any]:
    model = wrapped(**options, buffer_dtype=torch.bfloat16)
    names = [name for name, _ in model.get_original_names_and_sharded_parameters()]
    sizes = [each.numel() for each in model.parameters()]
    state = {"model": model.state_dict(), "shard_metadata": model.get_shard_metadata()}
    xm.save(state, f"{folder}/model_rank-{xm.get_ordinal()}.pth", master_only=False)
    return {"names": names, "sizes": sizes, "dtype": model.shift.dtype}


@pytest.mark.parametrize("options", [{}, {"flatten_parameters": True}, {"shard_param_on_dim_0": True}])
def test_checkpoints(ranks, tmp_path, options, capsys):
    for found in ranks(2)(saved, str(tmp_path), options):
        assert found["dtype"] is torch.bfloat16
        if not options:
            assert found["names"] == [name for name, _ in Net().named_parameters()] or sorted(found["names"]) == sorted(
                name for name, _ in Net().named_parameters()
            )
            assert max(found["sizes"]) == 128
    prefix = f"{tmp_path}/model_"
    consolidate_sharded_ckpts.main(["--ckpt_prefix", prefix, "--ckpt_suffix", "rank-*.pth"])
    assert "saved the consolidated model" in capsys.readouterr().out
    loaded = Net()
    with torch.no_grad():
        for each in loaded.parameters():
            each.zero_()
    loaded.load_state_dict(torch.load(f"{prefix}_consolidated.pth")["model"])
    for (name, each), (_, expected) in zip(loaded.state_dict().items(), Net().state_dict().items(), strict=True):
        torch.testing.assert_close(each, expected, rtol=0, atol=0, msg=name)
    (tmp_path / "model_rank-1.pth").unlink()
    with pytest.raises(ValueError, match=r"expected a file of each of 2 ranks in .*, got those of the ranks \[0\]"):
        fsdp.consolidate_sharded_model_checkpoints(prefix, "rank-*.pth", save_model=False)
    with pytest.raises(FileNotFoundError, match="there is no checkpoint"):
        fsdp.consolidate_sharded_model_checkpoints(str(Path(tmp_path) / "none"))


def gathers(reshard: bool) -> int:
    model = FSDP(nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)), reshard, disable_reshard_on_root=False)
    model(mine(batch(0))).sum().backward()
    text = _XLAC._get_xla_tensors_hlo([each.grad for each in model.parameters()])
    lazy_runtime.sync()
    return sum(" all-gather(" in line for line in text.splitlines())


def test_what_is_gathered_again(ranks):
    assert ranks(2)(gathers, False) == [4, 4]
    assert ranks(2)(gathers, True) == [5, 5]  # of the weight that the backward pass reads


def in_groups() -> tuple[list[int], float]:
    options = {"sharding_groups": [[0, 1], [2, 3]], "sharding_rank": xm.get_ordinal() % 2, "sharding_world_size": 2}
    model = FSDP(nn.Linear(4, 4, bias=False), **options, _shard_size_multiple=1)
    with torch.no_grad():
        found = model(torch.eye(4, device="xla"))
    expected = model.clip_grad_norm_(1.0)
    return [each.numel() for each in model.parameters()], found.sum().item() - expected.item()


def test_groups(ranks):
    found = ranks(4)(in_groups)
    assert [sizes for sizes, _ in found] == [[8]] * 4
    assert len({total for _, total in found[:2]}) == 1


def test_tied_frozen_and_meta_parameters():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    model[0].bias.requires_grad_(False)
    plain = copy.deepcopy(model)
    made = FSDP(model)
    assert len(list(made.parameters())) == 3
    x = torch.randn(2, 3)
    made(x.to("xla")).sum().backward()
    plain(x).sum().backward()
    assert [each.grad is None for each in made.parameters()] == [False, True, False]
    assert len(made.params_with_grad) == 2
    torch.testing.assert_close(next(made.parameters()).grad.cpu(), plain[0].weight.grad.reshape(-1))

    filled = []
    for init in (None, lambda each: (filled.append(each), each.to_empty(device="xla"), each.reset_parameters())):
        with torch.device("meta"):
            layer = nn.Linear(3, 2)
        made = FSDP(layer, param_init_fn=init)
        assert next(made.parameters()).abs().max().item() <= 1.0
        assert made(x.to("xla")).shape == (2, 2)
    assert len(filled) == 1


def test_policies_and_attributes():
    made = FSDP(Net(), auto_wrap_policy=always_wrap_policy, compute_dtype=torch.bfloat16)
    assert sum(isinstance(each, FSDP) for each in made.modules()) == 7
    assert isinstance(made.inner[0], FSDP)
    assert isinstance(made.module, Net)
    assert made.extra_repr() == (
        "world_size=1, rank=0, reshard_after_forward=True, compute_dtype=torch.bfloat16, buffer_dtype=torch.bfloat16, "
        "fp32_reduce_scatter=False, shard_param_on_dim_0=False"
    )
    assert f"({made.extra_repr()}" in repr(made).replace("\n  ", "")
    assert made(torch.ones(2, 4, device="xla")).dtype is torch.bfloat16
    made.set_gradient_divide_factors(2.0, 4.0, recursive=True)
    assert (made.inner.gradient_predivide_factor, made.inner.gradient_postdivide_factor) == (2.0, 4.0)
    made.assert_state(module.TrainingState.IDLE)
    with pytest.raises(RuntimeError, match="expected the state"):
        made.assert_state([module.TrainingState.FORWARD])
    assert made.clip_grad_norm_(1.0, float("inf")).item() == 0.0
    assert torch.float32 in module.FLOAT_DTYPES
    assert module.XLA_DISABLE_FUNCTIONALIZATION is False


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"compute_dtype": torch.int8}, ValueError, "compute_dtype: expected one of"),
        ({"sharding_groups": [[0]]}, ValueError, "pass sharding_rank and sharding_world_size too"),
        ({"sync_on_finalization": True}, NotImplementedError, r"call torch_xla.sync\(\) after it"),
        ({"unknown": True}, TypeError, "has no argument 'unknown'"),
    ],
)
def test_refusals(options, error, match):
    with pytest.raises(error, match=match):
        FSDP(nn.Linear(2, 2), **options)
    with pytest.raises(ValueError, match="is wrapped already"):
        FSDP(FSDP(nn.Linear(2, 2)))
