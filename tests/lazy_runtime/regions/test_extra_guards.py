"""Changes that Dynamo's guards do not see: methods, hooks, and the environment."""

from __future__ import annotations

import gc
import os
import weakref

import pytest
import torch
from torch import nn

from lazy_runtime.regions.extra_guards import Unguarded


def classes():
    """A base class and one that inherits from it."""

    class Base:
        setting = 3

        def method(self):
            return 1

        @property
        def size(self):
            return 2

        @staticmethod
        def function():
            return 3

    class Derived(Base):
        def other(self):
            return 4

    return Base, Derived


def noted(*objects):
    found = Unguarded()
    found.note(objects)
    assert found.is_same()
    return found


@pytest.mark.parametrize("name", ["method", "size", "function"])
def test_a_method_that_is_exchanged_is_noticed_until_it_is_back(name):
    base, _derived = classes()
    found = noted(base())
    before = vars(base)[name]
    setattr(base, name, lambda self: 5)
    assert not found.is_same()
    setattr(base, name, before)
    assert found.is_same()


def test_a_method_that_is_added_or_deleted_is_noticed():
    base, _derived = classes()
    found = noted(base())
    base.new = lambda self: 5
    assert not found.is_same()
    del base.new
    assert found.is_same()
    del base.method
    assert not found.is_same()


def test_methods_are_those_of_all_base_classes():
    base, derived = classes()
    found = noted(derived())
    base.method = lambda self: 5
    assert not found.is_same()


def test_classes_that_nobody_looked_at_do_not_count():
    base, derived = classes()
    found = noted(base())
    derived.other = lambda self: 5
    assert found.is_same()


def test_a_class_may_be_looked_at_itself():
    base, _derived = classes()
    found = noted(base)
    base.method = lambda self: 5
    assert not found.is_same()


def test_values_of_a_class_are_left_to_dynamos_guards():
    base, _derived = classes()
    found = noted(base())
    base.setting = 4
    assert found.is_same()


def test_what_cannot_change_needs_no_look():
    found = noted(3, "text", None, [1], int, len)
    assert found._classes == {}


@pytest.mark.parametrize(
    ("register", "hook"),
    [
        (nn.Module.register_forward_pre_hook, lambda module, args: None),
        (nn.Module.register_forward_hook, lambda module, args, result: None),
        (nn.Module.register_full_backward_pre_hook, lambda module, gradient: None),
        (nn.Module.register_full_backward_hook, lambda module, before, after: None),
    ],
)
def test_a_hook_of_a_module_is_noticed_until_it_is_removed(register, hook):
    module = nn.Linear(2, 2)
    found = noted(module)
    handle = register(module, hook)
    assert not found.is_same()
    handle.remove()
    assert found.is_same()


def test_hooks_of_other_modules_do_not_count():
    found = noted(nn.Linear(2, 2))
    nn.Linear(2, 2).register_forward_hook(lambda module, args, result: None)
    assert found.is_same()


def test_a_hook_of_all_modules_is_noticed_whatever_was_looked_at():
    found = noted()
    handle = nn.modules.module.register_module_forward_hook(lambda module, args, result: None)
    try:
        assert not found.is_same()
    finally:
        handle.remove()
    assert found.is_same()


def test_a_module_is_not_kept_alive():
    module = nn.Linear(2, 2)
    found = noted(module)
    reference = weakref.ref(module)
    del module
    gc.collect()
    assert reference() is None
    assert found.is_same()


def test_the_environment_is_noticed_until_it_is_as_before(monkeypatch):
    monkeypatch.setenv("A_SETTING_OF_THE_USER", "1")
    found = noted()
    for change in ("2", ""):
        monkeypatch.setenv("A_SETTING_OF_THE_USER", change)
        assert not found.is_same()
    del os.environ["A_SETTING_OF_THE_USER"]
    assert not found.is_same()
    monkeypatch.setenv("A_SETTING_OF_THE_USER", "1")
    assert found.is_same()


def test_what_is_noted_later_is_compared_with_what_it_was_then():
    base, _derived = classes()
    found = noted(torch.nn.Linear(2, 2))
    base.method = lambda self: 5
    found.note([base()])
    assert found.is_same()
    base.method = lambda self: 6
    assert not found.is_same()
