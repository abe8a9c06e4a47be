"""Tensors in what modules take and give."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, namedtuple

import torch
from torch.nn.utils.rnn import pack_sequence

from lazy_runtime.torch_xla.distributed.fsdp.trees import apply_to_tensors, collect_tensors

Pair = namedtuple("Pair", "a b")


@dataclasses.dataclass
class Data:
    x: torch.Tensor
    name: str


def test_all_kinds():
    one = torch.ones(1)
    given = {"list": [one, 1], "pair": Pair(one, "b"), "data": Data(one, "c"), "ordered": OrderedDict(x=one)}
    given["packed"] = pack_sequence([torch.ones(2)])
    found = apply_to_tensors(lambda x: x + 1, given)
    assert found["list"] == [torch.tensor([2.0]), 1]
    assert (found["pair"].a.item(), found["pair"].b, type(found["pair"])) == (2.0, "b", Pair)
    assert (found["data"].x.item(), found["data"].name) == (2.0, "c")
    assert type(found["ordered"]) is OrderedDict
    assert found["packed"].data.tolist() == [2.0, 2.0]
    assert len(collect_tensors(given)) == 6
    assert apply_to_tensors(lambda x: x, "text") == "text"
