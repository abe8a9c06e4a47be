"""`experimental.gru`, against torch's GRU on the CPU."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_sequence

from lazy_runtime.torch_xla.experimental.gru import GRU


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_values_and_gradients(batch_first, bias):
    torch.manual_seed(0)
    torchs = nn.GRU(3, 4, num_layers=2, bias=bias, batch_first=batch_first)
    mine = GRU(3, 4, num_layers=2, bias=bias, batch_first=batch_first)
    mine.load_state_dict(torchs.state_dict())
    mine = mine.to("xla")
    for shape, hidden in (((5, 2, 3), (2, 2, 4)), ((2, 5, 3), None), ((5, 3), (2, 4)), ((4, 3), None)):
        x = torch.randn(shape)
        if hidden is not None and len(shape) == 3:
            hidden = (2, shape[0] if batch_first else shape[1], 4)
        state = None if hidden is None else torch.randn(hidden)
        expected, last = torchs(x, state)
        found, mine_last = mine(x.to("xla"), None if state is None else state.to("xla"))
        torch.testing.assert_close(found.cpu(), expected)
        torch.testing.assert_close(mine_last.cpu(), last)
    (expected.sum() + last.pow(2).sum()).backward()
    (found.sum() + mine_last.pow(2).sum()).backward()
    for parameter, other in zip(mine.parameters(), torchs.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad.cpu(), other.grad, rtol=1e-4, atol=1e-5)


def test_refusals():
    layer = copy.deepcopy(GRU(3, 4)).to("xla")
    with pytest.raises(TypeError, match="takes no PackedSequence"):
        layer(pack_sequence([torch.ones(2, 3)]))
    with pytest.raises(ValueError, match="Expected input to be 2D or 3D, got 1D"):
        layer(torch.ones(3, device="xla"))
    with pytest.raises(RuntimeError, match=r"hx should also be 3-D but got 2-D"):
        layer(torch.ones(2, 1, 3, device="xla"), torch.ones(1, 4, device="xla"))
    with pytest.raises(RuntimeError, match="Expected hidden size"):
        layer(torch.ones(2, 1, 3, device="xla"), torch.ones(2, 1, 4, device="xla"))
    with pytest.warns(UserWarning, match=r"this is a torch\.nn\.GRU"):
        both = GRU(3, 4, bidirectional=True)
    assert type(both) is nn.GRU
    with pytest.raises(ValueError, match="has one direction"):
        GRU(3, 4, 1, True, False, 0.0, True)
