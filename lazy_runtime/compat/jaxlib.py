"""Private names of jax and jaxlib. jaxlib has no public ones, and documents none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .rows import NOTHING, XLA, Row, attributes, finder, group, needed_by

if TYPE_CHECKING:  # what type checkers are to know better than Any
    from jaxlib.mlir import ir as ir
    from jaxlib.mlir.dialects import stablehlo as stablehlo

_ROWS = (
    Row(
        "jaxlib.xla_client:CompileOptions",
        "the key of a cached program says which flags XLA has read",
        "the cache of compiled programs on disk",
    ),
    *group(
        "a program is looked through: what it calls, and where barriers belong",
        "the cache of compiled programs on disk; fusion emitters of XLA:CPU",
        "jaxlib.mlir.ir",
        "jaxlib.mlir.dialects.stablehlo",
    ),
    Row(
        "jaxlib._jax:DeviceList",
        "machine code is loaded for a device, without jax's pickles around it",
        "packages (`lazy_runtime.load`)",
    ),
    Row(
        "jaxlib.lapack:prepare_lapack_call",
        "a program from the disk calls LAPACK, which tracing has not prepared",
        "cached programs with `torch.linalg`",
    ),
    *group(
        "tensors on the CPU become arrays without jax's Python around it",
        "20 microseconds for each tensor",
        "jaxlib._jax:batched_device_put",
        "jaxlib._jax:buffer_to_dlpack_managed_tensor",
    ),
    *group(
        "an HLO module is taken into a program: jax takes StableHLO alone",
        "`xla_builder.computation_from_module_proto`",
        "jaxlib._jax:mlir.hlo_to_stablehlo as hlo_to_stablehlo",
        "jaxlib._jax:mlir.serialize_portable_artifact as serialize_portable_artifact",
    ),
    *attributes(
        "jax.sharding:Sharding",
        "jax.sharding:Sharding",
        "devices of a sharding have an order",
        "tensors on several devices",
        "_device_assignment as device_assignment_of",
    ),
    *attributes(
        "jax.sharding:Sharding",
        "jax.sharding:Sharding",
        "a sharding is shown as XLA writes it",
        "`get_sharding_spec`",
        "_to_xla_hlo_sharding as hlo_sharding_of",
    ),
)

ROWS = needed_by(
    XLA,
    _ROWS,
    {
        NOTHING: (
            "DeviceList",
            "batched_device_put",
            "buffer_to_dlpack_managed_tensor",
            "hlo_to_stablehlo",
            "serialize_portable_artifact",
        )
    },
)

__getattr__ = finder(globals(), ROWS)
