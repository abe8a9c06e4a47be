"""How tensors lie on several devices: marks, meshes, and what programs are told."""

from __future__ import annotations

import pytest
import torch

import lazy_runtime
from lazy_runtime.compilation import linearization
from lazy_runtime.ir import grid
from lazy_runtime.platform import xla_devices
from lazy_runtime.tensor import sharding
from lazy_runtime.tensor.xla_tensor import unwrap
from tests.lazy_runtime.torch_xla.distributed.spmd.worker import Worker


@pytest.fixture(scope="module")
def spmd():
    """Calls functions in a process with four devices that xla:0 stands for."""
    worker = Worker(CPU_NUM_DEVICES="4")
    yield worker
    worker.close()


def device():
    return xla_devices.get(torch.device("xla:0"))


def cut(*cuts):
    """The sharding along axes of the mesh of two by two devices."""
    return sharding.resolve(device(), range(4), (2, 2), cuts)


def placed(result):
    """The numbered program that computes a result, and what it is told of shardings."""
    numbered = linearization.linearize(device(), device().pending[:], donate=False)
    assert numbered.live == [unwrap(result).handle]
    return sharding.place(numbered.graph, numbered.leaves, numbered.live)


# ---- without several devices


@pytest.mark.parametrize(
    ("cuts", "encoded"),
    [
        ([], []),
        ([[0], [1]], [1, 0, 1, 1]),
        ([[], [1, 0], []], [0, 2, 1, 0, 0]),
    ],
)
def test_cuts_are_numbers_for_the_operator(cuts, encoded):
    assert sharding.encode(cuts) == encoded
    assert sharding.decode(encoded) == cuts


def test_one_device_has_no_shardings():
    x = torch.ones(2, 3).to("xla")
    assert sharding.of(x) is None
    assert sharding.text(x) == ""


def test_what_is_on_no_xla_device_has_none():
    with pytest.raises(TypeError, match="expected a tensor on an xla device, got one on cpu"):
        sharding.of(torch.ones(2, 3))


# ---- meshes


def texts():
    """Of a matrix, cut in all ways."""
    ways = {
        "not at all": [[], []],
        "rows": [[0], []],
        "both": [[0], [1]],
        "the other way round": [[1], [0]],
        "rows in four": [[0, 1], []],
    }
    return {name: sharding.hlo_text(cut(*cuts), 2) for name, cuts in ways.items()}


def test_a_sharding_is_written_as_xla_does(spmd):
    assert spmd(texts) == {
        "not at all": "{replicated}",
        "rows": "{devices=[2,1,2]0,1,2,3 last_tile_dim_replicate}",
        "both": "{devices=[2,2]0,1,2,3}",
        "the other way round": "{devices=[2,2]0,2,1,3}",
        "rows in four": "{devices=[4,1]0,1,2,3}",
    }


def equal_however_said():
    flat = sharding.resolve(device(), range(4), (4,), [[0]])
    turned = sharding.resolve(device(), [0, 2, 1, 3], (2, 2), [[1], [0]])
    return flat == cut([0, 1]), turned == cut([0], [1]), flat == cut([1, 0])


def test_equal_shardings_of_other_meshes_are_equal(spmd):
    assert spmd(equal_however_said) == (True, True, False)


def refused(ids, shape):
    cut([0])
    with pytest.raises(ValueError, match="mesh") as caught:
        sharding.resolve(device(), ids, shape, [[0]])
    return str(caught.value)


@pytest.mark.parametrize(
    ("ids", "shape", "message"),
    [
        ([0, 1, 2, 7], (4,), "there is no device 7, this process has 4 (0 to 3)"),
        ([0, 1], (2,), "a mesh takes all devices, which are 4 (0 to 3)"),
        ([0, 1, 1, 3], (4,), "a mesh takes all devices, which are 4 (0 to 3)"),
        ([0, 1, 3, 2], (4,), "the mesh 4 of the devices [0, 1, 3, 2] cannot be used beside 2x2 of [0, 1, 2, 3]"),
    ],
)
def test_what_is_no_mesh_is_said(spmd, ids, shape, message):
    assert message in spmd(refused, ids, shape)


# ---- tensors


def marks():
    x = torch.ones(4, 4).to("xla")
    found = [sharding.marked(x) is None]
    sharding.set_mark(x, cut([0]))
    found += [sharding.marked(x) == sharding.of(x) == cut([0]), sharding.marked(x.clone()) is None]
    x.resize_(2, 8)
    found.append(sharding.marked(x) is None)
    sharding.set_mark(x, cut([1]))
    found.append(sharding.marked(x) == cut([1]))
    sharding.set_mark(x, None)
    return [*found, sharding.marked(x) is None, sharding.text(x) == ""]


def test_a_mark_belongs_to_a_tensor_of_one_shape(spmd):
    assert spmd(marks) == [True] * 7


def data():
    x = torch.ones(4, 4).to("xla")
    lazy_runtime.sync()
    value = unwrap(x).handle.value
    whole = sharding.of(x)
    lies = sharding.lay(value, device())[1]
    moved, now = sharding.lay(value, device(), cut([], [1]))
    assert moved is value.array
    assert sharding.lay(value, device())[0] is moved  # any way will do
    return whole is None, lies.is_fully_replicated, now == cut([], [1]), sharding.text(x), x.sum().item()


def test_data_is_brought_to_where_it_is_wanted(spmd):
    assert spmd(data) == (True, True, True, "{devices=[1,2,2]0,2,1,3 last_tile_dim_replicate}", 16)


# ---- programs


def told():
    x = torch.ones(4, 4).to("xla")
    lazy_runtime.sync()
    free = x + 1
    graph = placed(free)
    found = [graph.placements == (grid.sharding(device().grid, []),), graph.results == (None,)]
    sharding.set_mark(free, cut([0]))
    wanted = placed(free)
    found += [wanted.results == (cut([0]),), wanted == graph]
    lazy_runtime.sync()
    return [*found, sharding.text(free)]


def test_a_program_is_told_how_marked_results_lie(spmd):
    text = "{devices=[2,1,2]0,1,2,3 last_tile_dim_replicate}"
    assert spmd(told) == [True, True, True, False, text]


def nothing_to_go_by():
    x = torch.ones(4, 4, device="xla")
    return placed(x).results == (device().sharding,)


def test_a_program_without_inputs_is_told_its_devices(spmd):
    assert spmd(nothing_to_go_by)


def collective():
    x = torch.ones(4).to("xla")
    lazy_runtime.sync()
    kept = x + 1
    numbered = linearization.linearize(device(), device().pending[:], donate=False)
    (call,) = numbered.graph.calls
    call.collective = True
    with pytest.raises(
        NotImplementedError, match=r"a collective of ranks .* where xla:0 stands for the devices of all"
    ):
        sharding.place(numbered.graph, numbered.leaves, numbered.live)
    call.collective = False
    return kept.tolist()


def test_collectives_of_ranks_are_refused(spmd):
    assert spmd(collective) == [2, 2, 2, 2]
