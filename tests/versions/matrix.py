"""Which versions are tried together, and by which tests."""

from __future__ import annotations

from typing import NamedTuple


class Combination(NamedTuple):
    """Versions that are installed into one environment.

    Attributes:
        python: as its command is called, `3.12`.
        torch: a release.
        jax: a release; jaxlib is of the same.
    """

    python: str
    torch: str
    jax: str

    def __str__(self) -> str:
        return f"python{self.python}-torch{self.torch}-jax{self.jax}"


#: Each supported torch and jax, and each Python, at least once. jax 0.10 wants Python 3.11, jax 0.11 wants 3.12.
MATRIX = (
    Combination("3.11", "2.11.0", "0.10.2"),
    Combination("3.11", "2.12.0", "0.10.2"),
    Combination("3.11", "2.13.0", "0.10.2"),
    Combination("3.11", "2.14.1", "0.10.2"),
    Combination("3.12", "2.11.0", "0.11.2"),
    Combination("3.12", "2.14.1", "0.12.0.1"),
    Combination("3.13", "2.14.1", "0.12.0.1"),
)

#: Files of tests that meet most of what depends on the versions, in some minutes.
SMOKE = (
    "tests/lazy_runtime/compat",
    "tests/lazy_runtime/compilation/test_fusion_emitters.py",
    "tests/lazy_runtime/dispatcher/test_module_moves.py",
    "tests/lazy_runtime/execution/test_execute.py",
    "tests/lazy_runtime/recording/test_dispatch.py",
    "tests/lazy_runtime/test_autoload.py",
    "tests/openxla_backend/dynamo/test_registration.py",
    "tests/openxla_backend/dynamo/test_step_capture.py",
    "tests/openxla_backend/graph/test_control_flow.py",
    "tests/openxla_backend/test_backend.py",
)
