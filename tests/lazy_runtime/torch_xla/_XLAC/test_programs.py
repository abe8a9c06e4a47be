import pytest
import torch

import lazy_runtime
from lazy_runtime.common import metrics
from lazy_runtime.compilation import compiler
from lazy_runtime.torch_xla import _XLAC
from lazy_runtime.torch_xla.core import xla_builder as xb


def test_hashes():
    def hash_of(function, size=3):
        x = torch.ones(size).to("xla")
        return _XLAC._get_graph_hash([function(x)])

    assert len(hash_of(torch.cos)) == 16
    assert hash_of(torch.cos) == hash_of(torch.cos)
    assert len({hash_of(torch.cos), hash_of(torch.sin), hash_of(torch.cos, 4)}) == 3
    with pytest.raises(ValueError, match="at least one xla tensor"):
        _XLAC._get_graph_hash([])


def test_a_program_runs_with_other_inputs():
    x, y = torch.ones(3).to("xla"), torch.full((3,), 2.0).to("xla")
    ids = sorted(map(_XLAC._xla_get_tensor_id, (x, y)))
    results = [x * y, x, (x + y).relu_(), x * y]
    results[3] = results[0]
    program = _XLAC._get_graph_hash(results)
    numbers, values = _XLAC._get_tensors_xla_device_data_node(results, [x])
    assert sorted(numbers) == ids
    assert values[numbers.index(_XLAC._xla_get_tensor_id(x))] is x
    before = metrics.value("ExecuteComputation")
    _XLAC._xla_warm_up_cache(results, [])
    assert metrics.value("ExecuteComputation") == before
    compiled = metrics.value("UncachedCompile")
    place = {number: n for n, number in enumerate(numbers)}
    given = [None, None]
    given[place[_XLAC._xla_get_tensor_id(x)]] = torch.full((3,), -5.0, device="xla")
    given[place[_XLAC._xla_get_tensor_id(y)]] = torch.full((3,), 3.0, device="xla")
    product, total = _XLAC._run_cached_graph(program, given)
    assert (product.tolist(), total.tolist()) == ([-15.0] * 3, [0.0] * 3)
    assert given[0].shape == (3,)  # its buffer is still there
    assert given[0].cpu().sum() in (-15.0, 9.0)
    assert metrics.value("UncachedCompile") - compiled <= 1  # the inputs' own
    with pytest.raises(ValueError, match="expected 2 inputs, got 1"):
        _XLAC._run_cached_graph(program, [x])
    with pytest.raises(KeyError, match="no program has this hash"):
        _XLAC._run_cached_graph(b"?" * 16, [])


def test_random_numbers_are_drawn_anew():
    x = torch.rand(8, device="xla")
    program = _XLAC._get_graph_hash([x])
    (first,), (second,) = _XLAC._run_cached_graph(program, []), _XLAC._run_cached_graph(program, [])
    assert not torch.equal(first.cpu(), second.cpu())


def test_what_is_pending_can_be_forgotten():
    x = torch.ones(3, device="xla")
    lazy_runtime.sync()
    y = x + 1
    before = metrics.value("ExecuteComputation")
    _XLAC._clear_pending_irs("xla:0")
    lazy_runtime.sync()
    assert metrics.value("ExecuteComputation") == before
    assert _XLAC._is_placecholder(y)
    assert x.tolist() == [1] * 3
    with pytest.raises(RuntimeError, match="has no value"):
        y.cpu()


def test_live_tensors():
    x = torch.ones(3, device="xla") + 1
    report = _XLAC._xla_tensors_report(1, "xla:0")
    assert "aten::add" in report
    assert _XLAC._xla_tensors_report(100) == ""
    _XLAC._xla_sync_live_tensors("", [])
    assert not _XLAC._check_tensor_need_materialization([x])[0]
    assert _XLAC._xla_tensors_report(0) == ""


def test_modules():
    x = torch.ones(3).to("xla")
    proto = _XLAC._get_xla_tensors_hlo_proto([x * 2 + x])
    made = xb.computation_from_module_proto("again", proto)
    assert "multiply" in xb.get_computation_hlo(made)
    text = "func.func @main(%x: tensor<3xf32>) -> tensor<3xf32> { return %x : tensor<3xf32> }"
    assert _XLAC._run_stablehlo(text, [x])[0].tolist() == [1] * 3


def test_programs_at_hand():
    torch.ones(3, device="xla").cos().cpu()
    assert _XLAC._xla_get_num_cached_compilation_graph() == compiler.count()
    assert _XLAC._xla_computation_cache_is_initialized()
