"""How the arguments and results of a call are nested, as JSON: no pickle, and nothing imported to read it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

#: What JSON holds as it is.
_PLAIN = (type(None), bool, int, float, str)
_PLAIN_NAMES = frozenset(kind.__name__ for kind in _PLAIN)

Described = dict[str, Any]


class Fields(dict[str, Any]):
    """A result with names, in place of a class whose module the loading process has not imported.

    It is read as transformers' `ModelOutput` is: `out["logits"]`, `out.logits`, `out[0]`.
    """

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    def __getitem__(self, key: Any) -> Any:
        return list(self.values())[key] if isinstance(key, int | slice) else super().__getitem__(key)


def numbering(leaves: list[torch.Tensor]) -> Callable[[torch.Tensor], int]:
    """Numbers tensors in the order in which they come, and keeps them in a list: a `leaf` of `describe`."""

    def number(tensor: torch.Tensor) -> int:
        leaves.append(tensor)
        return len(leaves) - 1

    return number


def describe(value: Any, leaf: Callable[[torch.Tensor], int], path: str) -> Described:
    """A nested value as JSON.

    Args:
        leaf: gives the number that stands for a tensor.
        path: what errors call the value.

    Raises:
        TypeError: there is something in it that JSON has no form for; the message says where.
    """
    if isinstance(value, torch.Tensor):
        return {"tensor": leaf(value)}
    if type(value) in _PLAIN:
        return {type(value).__name__: value}
    if isinstance(value, torch.dtype | torch.device):
        return {type(value).__name__: str(value).removeprefix("torch.")}
    names = getattr(value, "_fields", None)
    if isinstance(value, tuple) and names is not None:  # a named tuple
        return _named(value, {name: getattr(value, name) for name in names}, leaf, path)
    if type(value) in (list, tuple):
        kind = type(value).__name__
        return {kind: [describe(each, leaf, f"{path}[{number}]") for number, each in enumerate(value)]}
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        if type(value) is dict:
            return {"dict": {key: describe(each, leaf, f"{path}[{key!r}]") for key, each in value.items()}}
        return _named(value, value, leaf, path)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}
        return _named(value, fields, leaf, path)
    raise TypeError(
        f"{path} is of type {type(value).__module__}.{type(value).__qualname__}: a package holds tensors, numbers, "
        "strings, None, and lists, tuples, dicts and dataclasses of them"
    )


def _named(value: Any, fields: Mapping[str, Any], leaf: Callable[[torch.Tensor], int], path: str) -> Described:
    kind = type(value)
    described = {name: describe(each, leaf, f"{path}.{name}") for name, each in fields.items()}
    return {"class": f"{kind.__module__}:{kind.__qualname__}", "fields": described}


def restore(described: Described, leaves: Sequence[Any], loaded: Mapping[str, Any]) -> Any:
    """The nested value again.

    Args:
        leaves: what stands in for the tensors, by their numbers.
        loaded: modules by name. A class of another one comes back as `Fields`.
    """
    ((kind, content), *_) = described.items()
    if kind == "tensor":
        return leaves[content]
    if kind in _PLAIN_NAMES:
        return content
    if kind == "dtype":
        return getattr(torch, content)
    if kind == "device":
        return torch.device(content)
    if kind in ("list", "tuple"):
        found = [restore(each, leaves, loaded) for each in content]
        return found if kind == "list" else tuple(found)
    if kind == "dict":
        return {key: restore(each, leaves, loaded) for key, each in content.items()}
    fields = {name: restore(each, leaves, loaded) for name, each in described["fields"].items()}
    module, _, name = content.partition(":")
    found: Any = loaded.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return Fields(fields) if found is None else found(**fields)


def flat(described: Described, path: str) -> Iterator[tuple[str, str, Any]]:
    """The leaves of a nested value: (path, kind, content), in order."""
    ((kind, content), *_) = described.items()
    if kind in ("list", "tuple"):
        for number, each in enumerate(content):
            yield from flat(each, f"{path}[{number}]")
    elif kind == "dict":
        for key, each in content.items():
            yield from flat(each, f"{path}[{key!r}]")
    elif kind == "class":
        for name, each in described["fields"].items():
            yield from flat(each, f"{path}.{name}")
    else:
        yield path, kind, content
