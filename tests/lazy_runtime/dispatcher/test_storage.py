"""Checkpoints, pickling, copying."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch


def save(value, **way) -> io.BytesIO:
    file = io.BytesIO()
    torch.save(value, file, **way)
    file.seek(0)
    return file


def checkpoint(device):
    x = torch.arange(6.0).reshape(2, 3)
    return {"x": x.to(device), "p": torch.nn.Parameter(x.to(device)), "half": x.bfloat16().to(device), "n": 3}


@pytest.mark.parametrize("saved_on", ["cpu", "xla"])
@pytest.mark.parametrize(
    ("map_location", "expected"),
    [
        (None, None),
        ("cpu", "cpu"),
        ("xla", "xla:0"),
        ("xla:0", "xla:0"),
        (torch.device("xla"), "xla:0"),
        ({"cpu": "xla:0", "xla:0": "cpu"}, "other"),
    ],
    ids=str,
)
def test_load(saved_on, map_location, expected):
    if expected is None:
        expected = {"cpu": "cpu", "xla": "xla:0"}[saved_on]
    if expected == "other":
        expected = {"cpu": "xla:0", "xla": "cpu"}[saved_on]
    loaded = torch.load(save(checkpoint(saved_on)), map_location=map_location)
    for name, original in checkpoint("cpu").items():
        if name == "n":
            continue
        tensor = loaded[name]
        assert tensor.device == torch.device(expected)
        assert type(tensor) is type(original)
        assert tensor.requires_grad == original.requires_grad
        assert tensor.dtype == original.dtype
        assert torch.equal(tensor.cpu(), original)


def test_tensors_that_shared_storage_share_it_again():
    x = torch.arange(6.0)
    loaded = torch.load(save({"all": x, "some": x[2:4], "rows": x.view(2, 3).t()}), map_location="xla")
    loaded["all"][2] = 100
    assert loaded["some"].tolist() == [100, 3]
    assert loaded["rows"].tolist() == [[0, 3], [1, 4], [100, 5]]
    assert loaded["some"].storage_offset() == 2


@pytest.mark.parametrize("way", [{}, {"_use_new_zipfile_serialization": False}], ids=["zip", "legacy"])
@pytest.mark.parametrize("location", [None, "cpu"])
@pytest.mark.parametrize("order", [("all", "some", "rows"), ("some", "rows", "all")], ids=str)
def test_xla_tensors_that_share_memory_are_written_once_and_share_it_again(way, location, order):
    x = torch.arange(6000.0, device="xla")  # `out=` of an empty tensor, as far as torch's storage knows
    tensors = {"all": x, "some": x[2:4], "rows": x.view(2, 3000).t()}
    file, alone = save({name: tensors[name] for name in order}, **way), save(x, **way)
    assert file.getbuffer().nbytes < alone.getbuffer().nbytes + 2000
    loaded = torch.load(file, map_location=location)
    for name, tensor in tensors.items():
        assert loaded[name].device.type == (location or "xla")
        assert (loaded[name].stride(), loaded[name].storage_offset()) == (tensor.stride(), tensor.storage_offset())
        assert torch.equal(loaded[name].cpu(), tensor.cpu())
    loaded["all"][2] = -1
    assert loaded["some"].tolist() == [-1, 3]
    assert loaded["rows"][2, 0] == -1
    assert loaded["all"].data_ptr() + 8 == loaded["some"].data_ptr()


@pytest.mark.parametrize("location", [None, "cpu"])
def test_tied_weights_are_written_once(location):
    model = Tied().to("xla")
    state = torch.load(save(model.state_dict()), map_location=location)
    assert state["head.weight"].data_ptr() == state["embedding.weight"].data_ptr()
    whole = torch.load(save(model), map_location=location, weights_only=False)
    assert whole.head.weight is whole.embedding.weight
    assert torch.equal(whole.head.weight.cpu(), model.head.weight.cpu())


@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.int16, torch.uint16, torch.bfloat16, torch.float8_e4m3fn, torch.complex64], ids=str
)
def test_each_dtype_shares(dtype):
    x = torch.ones(3, 2, device="xla").to(dtype)
    whole, part = torch.load(save([x, x[1:]]))
    assert part.data_ptr() - whole.data_ptr() == 2 * dtype.itemsize
    assert (part.dtype, part.shape) == (dtype, (2, 2))
    assert part.float().tolist() == [[1, 1], [1, 1]] if dtype is not torch.complex64 else part.sum() == 4


def test_layouts_that_share():
    """Memory in another order than that of the dimensions, with gaps, or with fewer elements than are shown."""
    channels_last = torch.randn(2, 3, 4, 5, device="xla").to(memory_format=torch.channels_last)
    tensors = [
        channels_last,
        channels_last[1],
        torch.ones(4, 6, device="xla")[:, 1::2],
        torch.ones(1, 3).to("xla").expand(4, 3),
    ]
    tensors += [torch.empty(0, device="xla"), torch.ones(0, 3, device="xla")[:, :2], torch.zeros((), device="xla")]
    for loaded, saved in zip(torch.load(save(tensors)), tensors, strict=True):
        assert loaded.stride() == saved.stride()
        assert torch.equal(loaded, saved)


def test_views_of_another_dtype_are_refused_as_on_the_cpu():
    for device in ("cpu", "xla"):
        x = torch.ones(3, device=device)
        with pytest.raises(RuntimeError, match="view the same data as different types"):
            save([x, x.view(torch.int32)])


def test_a_later_save_has_the_later_values():
    x = torch.zeros(4, device="xla")
    kept = save([x, x[:2]])
    x[0] = 5
    assert torch.load(save([x, x[:2]]))[1].tolist() == [5, 0]
    assert torch.load(kept)[1].tolist() == [0, 0]


def test_addresses():
    x = torch.arange(6.0, device="xla")
    assert x.data_ptr() == x.untyped_storage().data_ptr() == x.view(2, 3).data_ptr() == x.detach().data_ptr() != 0
    assert x[2:].data_ptr() == x.data_ptr() + 8
    assert x.untyped_storage().nbytes() == 24
    address, other = x.data_ptr(), torch.ones(6, device="xla")
    assert not address <= other.data_ptr() < address + 24
    assert not other.data_ptr() <= address < other.data_ptr() + 24
    x.add_(1)
    assert x.data_ptr() == address
    assert torch.nn.Parameter(other).data_ptr() == other.data_ptr()
    plain = torch.arange(6.0)
    assert plain[2:].data_ptr() == plain.data_ptr() + 8 == plain.untyped_storage().data_ptr() + 8


def test_a_copied_storage_is_on_the_cpu():
    x = torch.arange(6.0, device="xla")
    storage = x[1:].untyped_storage().cpu()
    assert storage.device.type == "cpu"
    assert torch.empty(0).set_(storage).tolist() == [0, 1, 2, 3, 4, 5]


def test_safetensors(tmp_path):
    import safetensors.torch as safetensors

    model, file = Tied().to("xla"), tmp_path / "model.safetensors"
    safetensors.save_model(model, file)
    for device in ("xla", "cpu"):
        loaded = Tied().to(device)
        safetensors.load_model(loaded, file)
        assert loaded.head.weight is loaded.embedding.weight
        assert torch.equal(loaded.head.weight.cpu(), model.head.weight.cpu())
        assert torch.equal(loaded.positions.cpu(), model.positions.cpu())
    x = torch.arange(6.0, device="xla")
    with pytest.raises(RuntimeError, match="share memory"):
        safetensors.save_file({"all": x, "some": x[2:4]}, file)
    safetensors.save_file({"first": x.clone(), "second": x[2:4].clone()}, file)
    assert safetensors.load_file(file)["second"].tolist() == [2, 3]
    halves = {"first": x[:3], "second": x[3:]}  # of one memory, but beside each other
    safetensors.save_file(halves, file)
    assert safetensors.load_file(file, device="cpu")["second"].tolist() == [3, 4, 5]


class Tied(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(4, 3)
        self.head = torch.nn.Linear(3, 4, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("positions", torch.arange(5))


def test_load_in_inference_mode():
    x = torch.arange(6.0)
    file = io.BytesIO()
    torch.save([x.view(2, 3).t(), x[2:4]], file)
    file.seek(0)
    with torch.inference_mode():
        transposed, part = torch.load(file, map_location="xla")
        assert transposed.device.type == "xla"
        assert torch.equal(transposed.cpu(), x.view(2, 3).t())
        assert torch.equal(part.cpu(), x[2:4])
        with pytest.raises(NotImplementedError, match="older format cannot be loaded to xla in inference mode"):
            torch.load(save(x, _use_new_zipfile_serialization=False), map_location="xla")


def test_loading_to_a_device_that_is_not_there():
    with pytest.raises(RuntimeError, match="xla:9 does not exist"):
        torch.load(save(torch.ones(2)), map_location="xla:9")


def test_state_dict():
    source = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    target = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2)).to("xla")
    target.load_state_dict(torch.load(save(source.state_dict()), map_location="xla"))
    for name, tensor in target.state_dict().items():
        assert torch.equal(tensor.cpu(), source.state_dict()[name])
    target[0].weight.data.zero_()
    source.load_state_dict(target.state_dict())
    assert source[0].weight.abs().sum() == 0


def test_a_checkpoint_from_xla_is_read_without_this_package(fresh_process, tmp_path):
    """As a checkpoint from a GPU is on a machine without one: with map_location="cpu"."""
    layer = torch.nn.Linear(3, 2).to("xla")
    optimizer = torch.optim.AdamW(layer.parameters())
    layer(torch.ones(1, 3, device="xla")).sum().backward()
    optimizer.step()
    numbers = torch.arange(6.0, device="xla").view(2, 3)
    tagged = torch.ones(2, device="xla")
    tagged.note = "mine"
    values = {"t": numbers.t(), "bf16": numbers.bfloat16(), "f8": numbers.to(torch.float8_e4m3fn), "tagged": tagged}
    torch.save({"model": layer.state_dict(), "optimizer": optimizer.state_dict(), **values}, tmp_path / "file.pt")
    torch.save(layer.weight, tmp_path / "legacy.pt", _use_new_zipfile_serialization=False)
    printed = fresh_process(
        f"""
        import sys

        class Without:
            def find_spec(self, name, path=None, target=None):
                if name.partition(".")[0] in ("lazy_runtime", "openxla_backend", "torch_xla", "jax"):
                    raise ImportError(f"no {{name}} here")

        sys.meta_path.insert(0, Without())
        import torch
        found = torch.load({str(tmp_path / "file.pt")!r}, map_location="cpu")
        torch.nn.Linear(3, 2).load_state_dict(found["model"])
        assert found["optimizer"]["state"][0]["exp_avg"].device.type == "cpu"
        assert found["t"].tolist() == [[0, 3], [1, 4], [2, 5]]
        assert found["bf16"].dtype is torch.bfloat16 and found["f8"].dtype is torch.float8_e4m3fn
        assert found["tagged"].note == "mine"
        assert torch.load({str(tmp_path / "legacy.pt")!r}, map_location="cpu").requires_grad
        print(found["model"]["weight"].sum().item())
        """,
        TORCH_DEVICE_BACKEND_AUTOLOAD="0",
    )
    assert float(printed) == pytest.approx(layer.weight.sum().item())
    here = torch.load(tmp_path / "file.pt")
    assert {each.device.type for each in here["model"].values()} == {"xla"}
    assert here["tagged"].note == "mine"


def test_load_of_a_whole_module():
    model = torch.nn.Linear(3, 2).to("xla")
    loaded = torch.load(save(model), weights_only=False)
    assert loaded.weight.device.type == "xla"
    assert torch.equal(loaded.weight, model.weight)


@pytest.mark.parametrize("requires_grad", [False, True])
def test_pickle(requires_grad):
    x = torch.arange(6.0).reshape(2, 3).to("xla").requires_grad_(requires_grad)
    y = pickle.loads(pickle.dumps(x))
    assert (y.device, y.requires_grad, y.is_leaf) == (x.device, requires_grad, True)
    assert torch.equal(x, y)
    z = torch.load(save(x))
    assert (z.device, z.requires_grad) == (x.device, requires_grad)


def test_pickle_of_parameters_and_modules():
    parameter = pickle.loads(pickle.dumps(torch.nn.Parameter(torch.ones(2, device="xla"))))
    assert type(parameter) is torch.nn.Parameter
    assert (parameter.device.type, parameter.requires_grad) == ("xla", True)
    model = torch.nn.Linear(3, 2).to("xla")
    assert torch.equal(pickle.loads(pickle.dumps(model)).weight, model.weight)


def test_pickle_of_cpu_tensors_is_torchs_own():
    x = torch.arange(4.0)
    pair = torch.load(save((x, x[:2])))
    pair[0][0] = 9
    assert pair[1].tolist() == [9, 1]
    assert pickle.loads(pickle.dumps(x.requires_grad_())).requires_grad


def test_deepcopy():
    model = torch.nn.Linear(3, 2).to("xla")
    model.tied = model.weight
    twin = copy.deepcopy(model)
    assert twin.tied is twin.weight
    twin.weight.data.zero_()
    assert model.weight.abs().sum() > 0
    x = torch.ones(3, device="xla")
    y = copy.deepcopy(x)
    y.add_(1)
    assert x.tolist() == [1, 1, 1]


def test_storages_cannot_be_exchanged():
    with pytest.raises(NotImplementedError, match="an xla tensor has no storage that can be exchanged"):
        torch.ones(2, device="xla").set_(torch.ones(2).untyped_storage())
