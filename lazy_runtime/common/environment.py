"""Every environment variable of this package in one table: what it takes, what it does, what it costs.

`docs/environment.md` is made of it (`debug/environment_page.py`). Values are checked when they are read, and all of
them when xla is first used: one that is not legal is an error that says which ones are.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, NamedTuple

TRUE = ("1", "true", "on", "yes")
FALSE = ("0", "false", "off", "no")


class Variable(NamedTuple):
    """One environment variable.

    Attributes:
        name: as PyTorch/XLA has it, where it has it.
        legal: what it takes, for people.
        parse: the value of a text that is not empty; raises ValueError where it is not legal.
        default: the value where the variable is unset or empty.
        read: when it is read: at the process's first use of xla ("start"), or whenever it matters ("use").
        effect: what it does.
        cost: what that costs.
        code: it can change the code of compiled programs, so it is part of every key under which they are kept.
    """

    name: str
    legal: str
    parse: Callable[[str], Any]
    default: Any
    read: str
    effect: str
    cost: str = "none"
    code: bool = False

    def value(self) -> Any:
        """What the environment says now.

        Raises:
            ValueError: its value is not legal.
        """
        if _data is not None and _keys[self.name] not in _data:
            return self.default
        text = os.environ.get(self.name, "").strip()
        if not text:
            return self.default
        try:
            return self.parse(text)
        except ValueError:
            raise ValueError(
                f"the environment variable {self.name} is {text!r}, which is none of its legal values: {self.legal}"
            ) from None


def _switch(text: str) -> bool:
    lowered = text.lower()
    if lowered in TRUE:
        return True
    if lowered in FALSE:
        return False
    raise ValueError(text)


def _choice(*legal: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text.lower() not in legal:
            raise ValueError(text)
        return text.lower()

    return parse


def _integer(lowest: int, highest: int | None = None) -> Callable[[str], int]:
    def parse(text: str) -> int:
        number = int(text)
        if number < lowest or (highest is not None and number > highest):
            raise ValueError(text)
        return number

    return parse


SWITCH = "0, 1, false, true, off, on, no, yes"


def _flag(name: str, default: bool, read: str, effect: str, cost: str = "none", code: bool = False) -> Variable:
    return Variable(name, SWITCH, _switch, default, read, effect, cost, code)


def _text(name: str, legal: str, read: str, effect: str, cost: str = "none") -> Variable:
    return Variable(name, legal, str, None, read, effect, cost)


_STORED = "fewer bits of every number, and so of every result"
_SLOW = "a program per operator: slow, for finding the operator that fails"

TABLE = (
    _text(
        "PJRT_DEVICE",
        "CPU, CUDA, TPU, or another platform that jaxlib knows",
        "start",
        "The platform whose devices are `xla:0`, `xla:1`, ...; by default jax's own choice.",
    ),
    _flag(
        "PJRT_SELECT_DEFAULT_DEVICE",
        True,
        "use",
        "Off, `xr.device_type()` is None where PJRT_DEVICE is not set, and does not say what jax will choose.",
    ),
    Variable(
        "CPU_NUM_DEVICES",
        "an integer from 1 to 1024",
        _integer(1, 1024),
        None,
        "start",
        "How many xla devices to make on the CPU; by default one.",
        "the devices share the cores",
    ),
    Variable(
        "XLA_MAX_ASYNC_QUEUE",
        "an integer from 1 on",
        _integer(1),
        None,
        "use",
        "How many closures wait in a `utils.closures.AsyncClosureHandler` before its `run` does; by default 100.",
    ),
    Variable(
        "XLA_JOB_TIMEOUT",
        "seconds, an integer from 1 on",
        _integer(1),
        300,
        "use",
        "How long the processes of a job wait for each other: to begin, at `xm.rendezvous` and `xm.mesh_reduce`, and "
        "in collectives. A process that has waited in vain ends and says where the others are.",
    ),
    Variable(
        "ALLREDUCE_GRADIENTS_BUCKET_SIZE_MB",
        "megabytes, an integer from 0 on",
        _integer(0),
        0,
        "use",
        "How much of the gradients `xm.reduce_gradients` reduces at once; 0 is all.",
    ),
    _flag(
        "XLA_USE_EAGER_DEBUG_MODE",
        False,
        "start",
        "Starts in eager mode (`experimental.eager_mode`): each operator runs when it is called.",
        "a program per operator instead of one per step",
    ),
    _flag(
        "XLA_ENABLE_PARAM_ALIASING",
        True,
        "use",
        "Buffers that die with a step are given to XLA for its results (donation).",
        "off: the memory of one more copy of the parameters",
    ),
    _flag(
        "XLA_KEEP_HOST_MEMORY",
        True,
        "start",
        "Memory that programs on the CPU give back stays in the process for the next one (`torch.xla.empty_cache()` "
        "returns it to the system).",
        "the process keeps the most that it ever used; off: the system clears pages at each execution",
    ),
    Variable(
        "XLA_CPU_PRODUCTS",
        "xla, torch",
        _choice("xla", "torch"),
        None,
        "use",
        "Whose kernels multiply matrices of float32 and float64 on the CPU; by default torch's on Intel's processors, "
        "for which its math library (MKL) is made, and XLA's on all others, but for those of float32 on AMD's "
        "in programs with convolutions or attention, which are oneDNN's.",
        "the other one's take 1.5 to 2 times as long",
        code=True,
    ),
    Variable(
        "XLA_CPU_BFLOAT16_PRODUCTS",
        "bfloat16, float32",
        _choice("bfloat16", "float32"),
        None,
        "use",
        "What products, convolutions and attention of bfloat16 are computed in on the CPU, by torch's kernels; by "
        "default float32 where the processor is slower at bfloat16: one of Intel's without AMX, and any without "
        "instructions for it. Results are rounded to bfloat16 in any case.",
        "the other one takes up to twice as long",
        code=True,
    ),
    _flag(
        "XLA_CPU_WINOGRAD",
        True,
        "use",
        "Large float32 convolutions of 3x3, and the gradients of their images and filters, are computed by Winograd's "
        "algorithm on the CPU, whose error is four to ten times that of the definition, 1e-6 to 4e-6 of a layer in the "
        "norm.",
        "off: such a layer takes two to three times as long; a weight that is kept, a quarter of the memory",
        code=True,
    ),
    _flag(
        "XLA_CPU_DIRECT_CONVOLUTIONS",
        True,
        "use",
        "Float32 convolutions of 1x1, and of each channel by itself, whose weights are kept are computed by kernels of "
        "this package on the CPU, where it has AVX-512; so are the gradients of the latter's filters of 5x5 and 7x7.",
        "off: by oneDNN's, which take 1.1 to 1.6 times as long, for the gradients 5 to 8 times",
        code=True,
    ),
    _flag(
        "XLA_STRICT_FALLBACK",
        False,
        "use",
        "An operator without a lowering raises instead of calling torch's CPU kernel.",
    ),
    _text(
        "XLA_PERSISTENT_CACHE_PATH",
        "a directory, or 0",
        "start",
        "Where compiled programs are kept for later processes; 0 keeps none. By default `lazy_runtime/xla` in "
        "`XDG_CACHE_HOME`, or in `~/.cache` (`docs/cache.md`).",
        "disk space, up to a bound",
    ),
    _flag(
        "XLA_PERSISTENT_CACHE_READ_ONLY", False, "start", "Compiled programs are taken from there, and none is kept."
    ),
    Variable(
        "XLA_PERSISTENT_CACHE_MAX_BYTES",
        "an integer from 0 on",
        _integer(0),
        2 << 30,
        "start",
        "How many bytes they may take; the least recently used go first.",
    ),
    Variable(
        "XLA_COMPILATION_CACHE_SIZE",
        "an integer from 1 on",
        _integer(1),
        1024,
        "use",
        "How many compiled programs a process keeps in memory; those that were not run for longest go first, and are "
        "compiled, or loaded from disk, where they are needed again (counter `EvictedComputations`).",
        "memory, one or two megabytes for a program of usual size",
    ),
    _flag(
        "XLA_USE_BF16",
        False,
        "start",
        "float32 and float64 tensors are stored and computed as bfloat16 on the device; `dtype` reads as before.",
        _STORED,
        code=True,
    ),
    _flag(
        "XLA_DOWNCAST_BF16",
        False,
        "start",
        "float32 tensors are stored and computed as bfloat16, and float64 ones as float32; `dtype` reads as before.",
        _STORED,
        code=True,
    ),
    _flag(
        "XLA_USE_32BIT_LONG",
        False,
        "start",
        "int64 tensors are stored and computed as int32, and uint64 ones as uint32; `dtype` reads as before.",
        "numbers beyond 2³¹ wrap around",
        code=True,
    ),
    _flag(
        "XLA_USE_SPMD",
        False,
        "start",
        "`xla:0` stands for all devices, as `xr.use_spmd()` has it, which sets the variable for processes that start "
        "later.",
    ),
    _flag(
        "XLA_NO_SPECIAL_SCALARS",
        False,
        "start",
        "0 and ±1 (and ±2 for integers) are inputs of the program like other Python numbers, not constants of it.",
        "programs that XLA cannot simplify for them",
    ),
    _flag(
        "XLA_SYNC_WAIT",
        False,
        "start",
        "Every sync waits until the program has run.",
        "the host no longer works ahead of the device",
    ),
    Variable(
        "PT_XLA_DEBUG_LEVEL",
        "0, 1, 2",
        _integer(0, 2),
        0,
        "start",
        "1 reports each compile with its cause, why a region compiled again, and each unplanned sync, once per line; 2 "
        "each execution as well.",
        "1: 1 to 2 µs per recorded operator, for its line; 2: a stack per execution",
    ),
    _flag("PT_XLA_DEBUG", False, "start", "PyTorch/XLA's older name for PT_XLA_DEBUG_LEVEL=2.", "as there"),
    _text("PT_XLA_DEBUG_FILE", "a file", "use", "Where these reports are appended; by default standard error."),
    Variable("PT_XLA_DEBUG_MAX_FRAME", "an integer from 1 on", _integer(1), 8, "use", "How many frames they show."),
    _flag(
        "XLA_IR_DEBUG",
        False,
        "start",
        "Each recorded operator keeps the Python stack that made it, for graphs as text.",
        "some 5 µs per recorded operator, and the memory of the stacks",
    ),
    _flag(
        "XLA_HLO_DEBUG",
        False,
        "start",
        "As XLA_IR_DEBUG, and the lines stand in the `op_name` metadata of HLO, StableHLO and profiles.",
        "as there; a program keeps the lines that it was first compiled with",
        code=True,
    ),
    _text(
        "XLA_SAVE_TENSORS_FILE",
        "a file",
        "start",
        "Each graph that is executed is appended, with the Python stack that executed it. Of several ranks each has a "
        "file of its own, whose name ends with `.RANK`.",
        "the text of the graph per execution",
    ),
    Variable(
        "XLA_SAVE_TENSORS_FMT",
        "text, dot, hlo, stablehlo",
        _choice("text", "dot", "hlo", "stablehlo"),
        "text",
        "use",
        "How graphs are written there.",
        "hlo and stablehlo lower the graph once more",
    ),
    Variable(
        "SAVE_GRAPH_FMT",
        "text, dot, hlo, stablehlo",
        _choice("text", "dot", "hlo", "stablehlo"),
        "text",
        "use",
        "How `debug.graph_saver.save_tensors_graph` writes a graph.",
    ),
    _text(
        "XLA_METRICS_FILE",
        "a file, STDERR, STDOUT",
        "use",
        "The metrics report is appended there at each step (`sync`, `mark_step`).",
        "about a millisecond per step",
    ),
    _flag(
        "XLA_GET_TENSORS_OPBYOP",
        False,
        "start",
        "Where a value is read, the pending operators run one by one.",
        _SLOW,
    ),
    _flag("GET_TENSORS_OPBYOP", False, "start", "XLA_GET_TENSORS_OPBYOP's older name.", "as there"),
    _flag(
        "XLA_SYNC_TENSORS_OPBYOP",
        False,
        "start",
        "At a sync, the pending operators run one by one.",
        _SLOW,
    ),
    _flag("SYNC_TENSORS_OPBYOP", False, "start", "XLA_SYNC_TENSORS_OPBYOP's older name.", "as there"),
    _flag("XLA_EMIT_STEPLOG", False, "use", "Each step (`sync`, `mark_step`) writes a line to standard error."),
    _flag(
        "XLA_DYNAMO_DEBUG",
        False,
        "use",
        'Each graph that Dynamo hands to `backend="openxla"` is printed, with the program made of it.',
        "text per compile",
    ),
)

# Some variables are read at every step, and `os.environ` takes more than a microsecond to say that one is not set; the
# dictionary behind it a twentieth.
_data = getattr(os.environ, "_data", None)
_keys = {variable.name: os.environ.encodekey(variable.name) for variable in TABLE}

_BY_NAME = {variable.name: variable for variable in TABLE}


def value(name: str) -> Any:
    """What the environment says about a variable of the table now.

    Raises:
        ValueError: its value is not legal.
    """
    return _BY_NAME[name].value()


def check() -> None:
    """Parses every variable of the table.

    Raises:
        ValueError: a value is not legal.
    """
    for variable in TABLE:
        variable.value()


def code_key() -> tuple[tuple[str, Any], ...]:
    """The variables that can change compiled code, with their values."""
    return tuple((variable.name, variable.value()) for variable in TABLE if variable.code)
