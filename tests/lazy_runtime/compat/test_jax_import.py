"""A program's numbers of numpy's are the same with xla as without."""

from __future__ import annotations

import pytest

STATE = """
import numpy, torch
numpy.random.seed(0)

def state():
    found = numpy.random.get_state()
    return found[1].tobytes(), found[2:]

before = state()
"""


@pytest.mark.parametrize(
    "first_use",
    [
        "torch.ones(2, device='xla')",
        "torch.nn.Linear(2, 2).to('xla')",
        "torch.compile(lambda x: x + 1, backend='openxla')(torch.ones(2))",
        "import lazy_runtime.torch_xla.core.xla_model as xm; xm.xla_device()",
    ],
)
def test_the_first_use_of_xla_leaves_numpys_random_numbers(first_use, fresh_process):
    fresh_process(f"{STATE}{first_use}\nimport sys\nassert 'jax' in sys.modules\nassert state() == before")


def test_each_module_leaves_them(fresh_process):
    """Whichever module of the package comes first, jax is imported by `compat.jax_import`.

    A module that does not import jax itself gets it through one that does.
    """
    found = fresh_process(
        """
        import builtins, importlib, os, pathlib, re, sys
        import lazy_runtime, openxla_backend

        assert "jax" not in sys.modules
        imported = builtins.__import__

        def look(name, *arguments, **options):
            if name.partition(".")[0] == "jax":
                frame = sys._getframe(1)
                while "importlib" in frame.f_code.co_filename:
                    frame = frame.f_back
                os._exit(0 if frame.f_globals["__name__"].endswith("compat.jax_import") else 77)
            return imported(name, *arguments, **options)

        builtins.__import__ = look
        tried = 0
        for package in (lazy_runtime, openxla_backend):
            folder = pathlib.Path(package.__path__[0])
            for file in sorted(folder.rglob("*.py")):
                name = ".".join((package.__name__, *file.relative_to(folder).with_suffix("").parts))
                if file.stem == "__main__" or not re.search("^(import|from) jax", file.read_text(), re.MULTILINE):
                    continue
                tried += 1
                child = os.fork()
                if child == 0:
                    try:
                        importlib.import_module(name.removesuffix(".__init__"))
                    finally:
                        os._exit(0)
                if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 77:
                    print(name)
        assert tried > 100
        """
    )
    assert found.split() == []
