"""Runs a script or a module that was written for torch_xla.

    python -m lazy_runtime [--replace] script.py [argument ...]
    python -m lazy_runtime [--replace] -m module [argument ...]

`import torch_xla` gives lazy_runtime in it, and in the processes that it starts. All else is as under plain `python`:
`sys.argv`, `sys.path`, `__main__`, tracebacks, the exit status.

options:
  --replace  take the place of a real torch_xla that is installed
"""

from __future__ import annotations

import io
import os
import runpy
import sys
import types
from collections.abc import Sequence

from . import alias

_NOT_THE_SCRIPTS = frozenset((__file__, runpy.__file__, "<frozen runpy>"))


def main(arguments: Sequence[str]) -> int:
    """Runs what the command line names; the exit status."""
    arguments = list(arguments)
    replace = arguments[:1] == ["--replace"]
    if replace:
        del arguments[0]
    if arguments[:1] in (["-h"], ["--help"]):
        print(__doc__)
        return 0
    as_module = arguments[:1] == ["-m"]
    if as_module:
        del arguments[0]
    if not arguments or (arguments[0].startswith("-") and not as_module):
        print(
            f"expected a script, or -m and a module, got {' '.join(arguments) or 'nothing'}\n{__doc__}", file=sys.stderr
        )
        return 2
    try:
        alias.install_torch_xla_alias(replace)
    except RuntimeError as error:
        print(f"python -m lazy_runtime: {error}", file=sys.stderr)
        return 1
    alias.inherit()
    sys.argv[:] = arguments
    try:
        (_run_module if as_module else _run_script)(arguments[0])
    except SystemExit:
        raise
    except BaseException as error:
        _report(error)
        return 130 if isinstance(error, KeyboardInterrupt) else 1
    return 0


def _fresh_main() -> types.ModuleType:
    """A new `__main__`; the one of `python -m lazy_runtime` stays alive, since it is still running."""
    module = types.ModuleType("__main__")
    _replaced.append(sys.modules["__main__"])
    sys.modules["__main__"] = module
    return module


_replaced: list[types.ModuleType] = []


def _run_module(name: str) -> None:
    _fresh_main()
    runpy._run_module_as_main(name)  # type: ignore[attr-defined]  what `python -m` itself calls


def _run_script(path: str) -> None:
    """What `python path` does. `runpy.run_path` would take the script's globals away when its last line has run, while
    its threads and exit handlers still need them.
    """
    if os.path.isdir(path) or path.endswith((".zip", ".pyz")):
        runpy.run_path(path, run_name="__main__")
        return
    if not getattr(sys.flags, "safe_path", False):  # from Python 3.11 on
        sys.path[0] = os.path.dirname(os.path.realpath(path))
    try:
        with io.open_code(os.path.abspath(path)) as file:
            source = file.read()
    except OSError as error:
        print(f"python -m lazy_runtime: can't open file {path!r}: {error.strerror}", file=sys.stderr)
        sys.exit(2)
    module = _fresh_main()
    module.__dict__.update(__file__=os.path.abspath(path), __cached__=None, __builtins__=__builtins__)
    exec(compile(source, path, "exec", dont_inherit=True), module.__dict__)


def _report(error: BaseException) -> None:
    """The traceback as the script's own process would show it: from the script's first frame on."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename in _NOT_THE_SCRIPTS:
        trace = trace.tb_next
    sys.excepthook(type(error), error.with_traceback(trace), trace)
