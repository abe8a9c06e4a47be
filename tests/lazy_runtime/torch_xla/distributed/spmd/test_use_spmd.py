"""`use_spmd` at other times than the beginning, and programs that a later process finds on disk."""

from __future__ import annotations

LATE = """
    import pytest, torch
    import lazy_runtime
    from lazy_runtime.torch_xla import runtime as xr
    from lazy_runtime.torch_xla.distributed import spmd as xs
    from lazy_runtime.tensor.xla_tensor import unwrap

    x = torch.arange(8.0).to("xla")
    there = torch.ones(2, device="xla:1")
    pending = x * 2
    model = torch.nn.Linear(8, 8).to("xla")
    compiled = torch.compile(model, backend="openxla")
    with torch.no_grad():
        before = compiled(x).cpu()
    with pytest.warns(RuntimeWarning, match="call use_spmd.. at the beginning"):
        xr.use_spmd()
    xr.use_spmd()
    assert lazy_runtime.devices() == [torch.device("xla:0")]
    assert pending.tolist() == [2.0 * n for n in range(8)]
    mesh = xs.get_1d_mesh("data")
    xs.mark_sharding(x, mesh, ("data",))
    y = x + pending
    assert y.tolist() == [3.0 * n for n in range(8)]
    assert len(unwrap(y).handle.value.array.devices()) == 4
    assert there.tolist() == [1.0, 1.0]
    with pytest.raises(RuntimeError, match="xla:0 and xla:1"):
        x[:2] + there
    with torch.no_grad():
        torch.testing.assert_close(compiled(x).cpu(), before)
    assert torch.from_dlpack(torch.utils.dlpack.to_dlpack(x.cpu())).tolist() == x.tolist()
    from lazy_runtime.torch_xla.utils import dlpack
    assert torch.from_dlpack(dlpack.to_dlpack(x)).tolist() == x.tolist()
    assert xr.get_memory_info()["bytes_used"] > 0
"""


def test_after_the_first_tensors(forked_process):
    forked_process(LATE, CPU_NUM_DEVICES="4")


KEPT = """
    import torch
    import lazy_runtime
    from lazy_runtime.cache import disk_cache
    from lazy_runtime.common import metrics
    from lazy_runtime.torch_xla import runtime as xr
    from lazy_runtime.torch_xla.distributed import spmd as xs

    xr.use_spmd()
    mesh = xs.Mesh(range(4), (2, 2))
    x = torch.arange(16.0).reshape(4, 4)
    found = []
    for spec in ((0, 1), (1, 0), (None, None)):
        y = x.to("xla")
        xs.mark_sharding(y, mesh, spec)
        z = y @ y.t() + 1
        xs.mark_sharding(z, mesh, (0, None))
        torch.testing.assert_close(z.cpu(), x @ x.t() + 1)
        assert xs.wrap_if_sharded(z).sharding_spec == "{devices=[2,1,2]0,1,2,3 last_tile_dim_replicate}"
    print(metrics.value("UncachedCompile"), metrics.value("PersistentCacheHit"))
"""


def test_programs_are_kept_for_their_shardings(forked_process, tmp_path):
    settings = {"CPU_NUM_DEVICES": "4", "XLA_PERSISTENT_CACHE_PATH": str(tmp_path)}
    assert forked_process(KEPT, **settings).split() == ["3", "0"]
    assert forked_process(KEPT, **settings).split() == ["0", "3"]
