from __future__ import annotations

import pytest
import torch

from lazy_runtime.torch_xla import _XLAC
from lazy_runtime.torch_xla import runtime as xr
from lazy_runtime.torch_xla.core import xla_model as xm


def both_ways() -> list[tuple[torch.Tensor, torch.Tensor]]:
    count = xr.world_size()
    token = _XLAC._get_all_reduce_token("xla:0")
    x = (torch.arange(8.0) + 10 * xr.global_ordinal()).to("xla")
    inplace = [x.clone(), x.clone()]
    _XLAC._xla_all_reduce_inplace("sum", inplace, 0.5, [], True)
    gathered, parts = torch.empty(16, device="xla"), torch.empty(4, device="xla")
    several, several_parts = [torch.empty(16, device="xla")], [torch.empty(4, device="xla")]
    tokens = [
        _XLAC._xla_all_gather_out(gathered, x, token, 0, count),
        _XLAC._xla_reduce_scatter_out("sum", parts, x, token, 1.0, 0, count),
        _XLAC._xla_all_gather_coalesced_out(several, [x], token, 0, count),
        _XLAC._xla_reduce_scatter_coalesced_out("sum", several_parts, [x], token, 1.0, 0, count),
    ]
    coalesced = _XLAC._xla_all_gather_coalesced([x, x + 1], token, 0, count)
    scattered = _XLAC._xla_reduce_scatter_coalesced("sum", [x], token, 1.0, 0, count)
    exchanged, after = _XLAC._xla_all_to_all(x, token, 0, 0, count)
    permuted, _ = _XLAC._xla_collective_permute(x, token, [[0, 1], [1, 0]])
    reduced, _ = _XLAC._xla_reduce_scatter("sum", x, token, 1.0, 0, count)
    tokens += [coalesced[-1], scattered[-1], after]
    assert all(each is token for each in tokens)
    whole, part = xm.all_gather(x), xm.reduce_scatter("sum", x, 1.0, 0, count)
    pairs = [
        (_XLAC._xla_all_reduce("sum", x, 1.0, [], True), xm.all_reduce("sum", x)),
        (inplace[1], xm.all_reduce("sum", x, 0.5)),
        (_XLAC._xla_all_gather(x, 0, count), whole),
        (gathered, whole),
        (several[0], whole),
        (coalesced[1], xm.all_gather(x + 1)),
        (parts, part),
        (several_parts[0], part),
        (scattered[0], part),
        (reduced, part),
        (exchanged, xm.all_to_all(x, 0, 0, count)),
        (permuted, xm.collective_permute(x, [[0, 1], [1, 0]])),
    ]
    return [(one.cpu(), other.cpu()) for one, other in pairs]


def test_are_those_of_xm(ranks):
    for found in ranks(2)(both_ways):
        assert len(found) == 12
        for one, other in found:
            assert torch.equal(one, other)


def test_tokens_and_wrong_calls():
    first = _XLAC._get_all_reduce_token("xla:0")
    assert _XLAC._get_all_reduce_token("xla:0") is first
    _XLAC._set_all_reduce_token("xla:0", None)
    assert _XLAC._get_all_reduce_token("xla:0") is not first
    _XLAC._set_all_reduce_token("xla:0", first)
    assert _XLAC._get_all_reduce_token("xla:0") is first
    x = torch.ones(2, device="xla")
    with pytest.raises(ValueError, match="shard_count: expected 1"):
        _XLAC._xla_all_gather(x, 0, 3)
    for call in (_XLAC._xla_send, _XLAC._xla_recv):
        with pytest.raises(NotImplementedError, match=r"torch\.distributed"):
            call(x, first, 1)
