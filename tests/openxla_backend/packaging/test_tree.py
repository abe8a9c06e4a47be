import collections
import dataclasses
import json
import sys

import pytest
import torch

from openxla_backend.packaging import tree

Pair = collections.namedtuple("Pair", "first second")


@dataclasses.dataclass
class Record:
    x: torch.Tensor
    size: int


def numbering():
    leaves = []
    return leaves, lambda tensor: leaves.append(tensor) or len(leaves) - 1


def through_json(value, loaded=None):
    leaves, leaf = numbering()
    described = json.loads(json.dumps(tree.describe(value, leaf, "x")))
    return tree.restore(described, leaves, sys.modules if loaded is None else loaded)


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        3,
        2.5,
        "text",
        torch.float16,
        torch.device("xla:1"),
        [1, [2, None]],
        (1, ()),
        {"a": 1, "b": {"c": []}},
    ],
    ids=repr,
)
def test_values_come_back_as_they_were(value):
    found = through_json(value)
    assert found == value
    assert type(found) is type(value)


def test_tensors_come_back_in_their_places():
    x, y = torch.ones(2), torch.zeros(3)
    found = through_json({"a": y, "b": Pair(x, 1), "c": Record(y, 2)})
    assert found["a"] is y
    assert (type(found["b"]), found["b"].first, found["b"].second) == (Pair, x, 1)
    assert (type(found["c"]), found["c"].x, found["c"].size) == (Record, y, 2)


def test_a_class_that_is_not_loaded_becomes_fields():
    x = torch.ones(2)
    found = through_json(Record(x, 2), loaded={})
    assert isinstance(found, tree.Fields)
    assert found.x is found["x"] is found[0] is x
    assert found[:] == [x, 2]
    assert list(found) == ["x", "size"]
    with pytest.raises(AttributeError, match="y"):
        _ = found.y
    with pytest.raises(KeyError, match="y"):
        found["y"]


@pytest.mark.parametrize(
    "value", [{1: 2}, {1, 2}, object(), 1j, [(object(),)]], ids=["keys", "set", "object", "complex", "deep"]
)
def test_what_json_has_no_form_for_is_named(value):
    with pytest.raises(TypeError, match=r"^x.* is of type .*: a package holds tensors, numbers"):
        through_json(value)


def test_the_leaves_have_paths():
    _, leaf = numbering()
    described = tree.describe({"a": [1, torch.ones(2)], "b": Record(torch.ones(1), 2)}, leaf, "x")
    assert list(tree.flat(described, "x")) == [
        ("x['a'][0]", "int", 1),
        ("x['a'][1]", "tensor", 0),
        ("x['b'].x", "tensor", 1),
        ("x['b'].size", "int", 2),
    ]
