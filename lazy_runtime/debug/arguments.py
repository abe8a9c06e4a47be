"""The arguments of recorded calls, for people."""

from __future__ import annotations

import re
from typing import Any

from ..compat.torch import dtype_abbrs, schema_of
from ..ir.graph import Call
from ..ir.spec import TensorSpec

#: Under which `named` has the precision of float32 products, which is no argument of the user's.
PRECISION = "precision"


def describe(spec: TensorSpec) -> str:
    """`f32[64,3]`, and the strides where they are not the usual ones."""
    text = f"{dtype_abbrs.get(spec.dtype, str(spec.dtype))}[{','.join(map(str, spec.shape))}]"
    return text if spec.is_contiguous else f"{text} with strides ({','.join(map(str, spec.stride))})"


def named(call: Call) -> dict[str, str]:
    """The arguments of a call that are no tensors, under the schema's names, as text."""
    return {name: shown(part) for name, part in parts(call).items() if not isinstance(part, TensorSpec)}


def parts(call: Call) -> dict[str, Any]:
    """The parts of a call's key (`dispatch._Scan.key_of`) under the schema's names."""
    if call.meaning is None:
        return {}
    operator, key = call.meaning
    arguments = [argument.name for argument in schema_of(operator.overload).arguments]
    found: dict[str, Any] = {}
    rest = list(key)
    if operator.products and rest:
        found[PRECISION] = rest.pop()
    position = 0
    while rest:
        part = rest.pop(0)
        if isinstance(part, str) and part in arguments and rest:  # a keyword, and its value
            found[part] = rest.pop(0)
        elif position < len(arguments):
            found[arguments[position]] = part
            position += 1
    return found


def shown(value: Any) -> str:
    """A part of a call's key as the user wrote it."""
    if isinstance(value, str) and _HEX.fullmatch(value):
        return f"{float.fromhex(value):g}"
    if isinstance(value, tuple) and len(value) == 2 and value[0] in (bool, complex):
        return str(value[1])
    if isinstance(value, tuple):
        return f"[{', '.join(map(shown, value))}]"
    if isinstance(value, TensorSpec):
        return describe(value)
    kind = getattr(value, "kind", None)
    if kind in ("float", "int"):
        return f"{'an int' if kind == 'int' else 'a float'} that may change"
    return str(value)


_HEX = re.compile(r"-?0x[01]\.[0-9a-f]*p[+-]\d+|-?inf|nan")
