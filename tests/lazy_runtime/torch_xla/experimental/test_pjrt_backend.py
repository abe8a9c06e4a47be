"""`pjrt://`, as older scripts begin a group."""

from __future__ import annotations


def test_a_group_begins_by_its_older_name(forked_process):
    printed = forked_process(
        """
        import torch
        import torch.distributed as dist
        import lazy_runtime
        lazy_runtime.install_torch_xla_alias()
        import torch_xla.experimental.pjrt_backend
        dist.init_process_group("xla", init_method="pjrt://")
        x = torch.ones(3, device="xla")
        dist.all_reduce(x)
        print(dist.get_world_size(), x.tolist())
        dist.destroy_process_group()
        """
    )
    assert printed == "1 [1.0, 1.0, 1.0]\n"
