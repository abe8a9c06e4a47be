"""Private names of `torch.distributed`."""

from __future__ import annotations

from .rows import NOTHING, XLA, Row, finder, group, needed_by

_ROWS = (
    Row(
        "torch.distributed._functional_collectives",
        "torch's functional collectives are ours",
        "collectives in compiled functions, DTensor",
    ),
    Row(
        "torch.distributed.distributed_c10d:_resolve_process_group",
        "a functional collective names its group",
        "collectives in compiled functions, DTensor",
    ),
    Row(
        "torch.distributed.distributed_c10d:_get_default_store",
        "ranks agree on whether a checkpoint is due",
        "`CheckpointManager` with preemption",
    ),
    Row(
        "torch._C._distributed_c10d:_create_work_from_future",
        "a collective of the group `xla` is done when it is recorded",
        "`init_process_group('xla')`",
        plain="work_from_future",
    ),
    *group(
        "meshes on xla have groups",
        "DTensor on xla",
        "torch.distributed.tensor._api:distribute_module",
        "torch.distributed.tensor._api:distribute_tensor",
    ),
    *group(
        "FSDP2 has operators on xla",
        "`fully_shard` on xla",
        "torch.distributed.fsdp._fully_shard._fsdp_collectives:all_gather_copy_in_cuda as fsdp_all_gather_copy_in",
        "torch.distributed.fsdp._fully_shard._fsdp_collectives:chunk_cat as fsdp_chunk_cat",
    ),
    *group(
        "FSDP2 frees parameters on xla",
        "`fully_shard` on xla",
        "torch.distributed.fsdp._fully_shard._fsdp_param:FSDPParam.free_unsharded_param as free_unsharded",
        "torch.distributed.fsdp._fully_shard._fsdp_param_group:FSDPParamGroup.finalize_backward",
        is_exchanged=True,
    ),
)

ROWS = needed_by(NOTHING, _ROWS, {XLA: ("functional_collectives", "resolve_process_group")})

__getattr__ = finder(globals(), ROWS)
