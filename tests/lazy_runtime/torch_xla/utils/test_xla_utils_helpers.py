import os

import pytest
import torch

from lazy_runtime.torch_xla.utils import utils as xu


def test_cleaner_and_folder():
    done = []
    cleaner = xu.Cleaner(lambda: done.append(1))
    assert not done
    del cleaner
    assert done == [1]
    folder = xu.TmpFolder()
    path = folder.name
    open(os.path.join(path, "file"), "w").close()
    del folder
    assert not os.path.exists(path)


def test_lazy_property():
    made = []
    lazy = xu.LazyProperty(lambda: made.append(1) or "value")
    assert not made
    assert (lazy.value, lazy.value) == ("value", "value")
    assert made == [1]


def test_generated_data():
    data = xu.FnDataGenerator(lambda x: x * 2, 3, torch.ones, dims=[2], count=2)
    assert len(data) == 2
    for _ in range(2):  # it begins anew
        batches = list(data)
        assert [(x.shape, y.sum().item()) for x, y in batches] == [((3, 2), 12.0)] * 2
    assert xu.FnDataGenerator(torch.neg, 3, torch.ones).next()[0].shape == (3, 1)


class Pair(xu.DataWrapper):
    def __init__(self, name, x, y):
        self.name, self.x, self.y = name, x, y

    def get_tensors(self):
        return [self.x, self.y]

    def from_tensors(self, tensors):
        return Pair(self.name, *tensors)


def test_wrapped_data_is_made_anew():
    pair = Pair("pair", torch.ones(1), torch.zeros(1))
    is_tensor = lambda x: isinstance(x, torch.Tensor)  # noqa: E731
    (moved,) = xu.for_each_instance_rewrite([pair], is_tensor, lambda x: x + 1)
    assert (moved.name, moved.x.item(), moved.y.item()) == ("pair", 2.0, 1.0)
    assert xu.for_each_instance_rewrite(pair, lambda x: False, None) is pair
    found = []
    xu.for_each_instance(pair, is_tensor, found.append)
    assert len(found) == 2
    with pytest.raises(NotImplementedError, match=r"DataWrapper\.get_tensors"):
        xu.DataWrapper().get_tensors()
    with pytest.raises(NotImplementedError, match=r"DataWrapper\.from_tensors"):
        xu.DataWrapper().from_tensors([])


def test_nests():
    assert xu.as_list(3) == [3]
    assert xu.as_list((3,)) == (3,)
    assert xu.shape([[1, 2, 3], [4, 5, 6]]) == [2, 3]
    assert xu.shape(1) == []
    with pytest.raises(ValueError, match="one shape"):
        xu.shape([[1], [1, 2]])
    assert xu.flatten_nested_tuple((1, [2, (3,)], 4)) == (1, 2, 3, 4)
    items = [1]
    assert xu.list_copy_append(items, 2) == [1, 2]
    assert items == [1]


def test_printing(monkeypatch, capsys):
    monkeypatch.delenv("DEBUG", raising=False)
    assert xu.get_print_fn() is xu.null_print
    assert xu.get_print_fn(True) is xu.eprint
    with xu.TimedScope("quiet ", None):
        xu.null_print("nothing")
    with xu.TimedScope("failed ") as scope:
        scope.set_error("why")
    assert capsys.readouterr() == ("", "")
    monkeypatch.setenv("DEBUG", "1")
    assert xu.timed(lambda: 3, "three ", None) == 3
    assert "three " in capsys.readouterr().err


@pytest.mark.parametrize(("text", "flag"), [("true", True), ("2", True), ("0", False), ("yes", False), ("", False)])
def test_flags(monkeypatch, text, flag):
    monkeypatch.setenv("SOME_FLAG", text)
    assert xu.check_env_flag("SOME_FLAG") is flag
    monkeypatch.delenv("SOME_FLAG")
    assert xu.check_env_flag("SOME_FLAG", "true") is True
