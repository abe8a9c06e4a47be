import threading

import pytest
import torch
from torch import nn

import lazy_runtime
from openxla_backend.packaging import archive, requirements
from openxla_backend.packaging.archive import PackageError

KEY = b"of the tests"


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    path = tmp_path_factory.mktemp("packages") / "linear"
    lazy_runtime.package(Called(model), (torch.ones(4, 3), [torch.ones(2)]), path, kwargs={"power": 2}, key=KEY)
    return path


class Called(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x, more, power):
        return self.model(x) ** power + more[0]


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        ((torch.ones(4, 3),), {"power": 2}, r"^called with x, power; .*linear was packaged for \(x, more, power\)"),
        ((torch.ones(4, 3), [torch.ones(2)], 2, 3), {}, "4 positional arguments"),
        ((torch.ones(4, 3), [torch.ones(2)]), {"power": 2, "x": 3}, "called with x, more, power"),
        ((torch.ones(5, 3), [torch.ones(2)], 2), {}, r"^x is a tensor of float32 \[5, 3\] on cpu; .* \[4, 3\] on cpu"),
        ((torch.ones(4, 3), [torch.ones(2).double()], 2), {}, r"^more\[0\] is a tensor of float64"),
        ((torch.ones(4, 3, device="xla"), [torch.ones(2)], 2), {}, r"^x is a tensor of float32 \[4, 3\] on xla"),
        ((torch.ones(4, 3), [torch.ones(2)], 3), {}, "^power is 3; .*linear was packaged for power, 2: numbers and"),
        ((torch.ones(4, 3), [torch.ones(2)], 2.0), {}, r"^power is 2\.0; .* was packaged for power, 2: numbers"),
        ((torch.ones(4, 3), [2.0], 2), {}, r"^more\[0\] is 2\.0; .* was packaged for more\[0\], a tensor"),
        ((torch.ones(4, 3), [torch.ones(2)] * 2, 2), {}, "more has 2 values; .* was packaged for 1"),
        ((torch.ones(4, 3), object(), 2), {}, "more is of type builtins.object"),
    ],
)
def test_other_arguments_are_refused(args, kwargs, message, path):
    with pytest.raises(TypeError, match=message):
        lazy_runtime.load(path, key=KEY)(*args, **kwargs)


def test_gradients_are_refused(path):
    loaded = lazy_runtime.load(path, key=KEY)
    x = torch.ones(4, 3, requires_grad=True)
    with pytest.raises(RuntimeError, match=r"^x requires gradients.*call it under torch\.no_grad\(\)"):
        loaded(x, [torch.ones(2)], 2)
    with torch.no_grad():
        assert not loaded(x, [torch.ones(2)], 2).requires_grad


@pytest.mark.parametrize("device", ["cpu", "xla"])
def test_an_argument_that_is_written_to_has_memory_of_its_own(device, tmp_path):
    x, y = torch.ones(3, device=device), torch.ones(3, device=device)
    lazy_runtime.package(lambda x, y: x.add_(y).sum(), (x, y), tmp_path / "p", key=KEY)
    loaded = lazy_runtime.load(tmp_path / "p", key=KEY)
    with pytest.raises(RuntimeError, match="x, which is written to, shares memory with another argument"):
        loaded(x, x)
    assert loaded(x, y).item() == 6


@pytest.mark.parametrize("what", ["openxla-torch", "jaxlib", "torch", "platform", "device", "processor"])
def test_code_for_something_else_is_refused(what, path, tmp_path, monkeypatch):
    contents = archive.read(path, None, KEY)
    required = {**contents.description["requires"], what: "another"}
    archive.write(tmp_path / "p", contents._replace(description={**contents.description, "requires": required}), KEY)
    with pytest.raises(PackageError, match=f"p was made for {what} 'another', here .*: package the model again, here"):
        lazy_runtime.load(tmp_path / "p", key=KEY)


def test_a_process_with_one_device_of_all_is_refused(path, forked_process):
    forked_process(
        f"""
        import lazy_runtime
        import torch
        from lazy_runtime import runtime as xr

        xr.use_spmd()
        torch.ones(2, device="xla").cpu()
        path = {str(path)!r}
        try:
            lazy_runtime.package(lambda x: x + 1, (torch.ones(2, device="xla"),), path + "2", key=b"k")
            lazy_runtime.load(path + "2", key=b"k")
        except NotImplementedError as error:
            assert "SPMD" in str(error), error
        else:
            raise AssertionError
        """,
        CPU_NUM_DEVICES="2",
    )


def test_threads_share_one(path):
    loaded = lazy_runtime.load(path, key=KEY)
    x = [torch.randn(4, 3) for _ in range(4)]
    expected = [loaded(each, [torch.ones(2)], 2) for each in x]
    wrong = []

    def work(number):
        for _ in range(50):
            if not torch.equal(loaded(x[number], [torch.ones(2)], 2), expected[number]):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_within_a_compiled_region_it_is_refused(tmp_path):
    x = torch.ones(2, device="xla")
    lazy_runtime.package(lambda x: x + 1, (x,), tmp_path / "p", key=KEY)
    loaded = lazy_runtime.load(tmp_path / "p", key=KEY)
    step = lazy_runtime.compile(lambda: loaded(x))
    with pytest.raises(NotImplementedError, match=r"a packaged function within lazy_runtime\.compile"):
        step()
    assert loaded(x + 1).tolist() == [3, 3]  # what is pending is computed before


def test_what_code_depends_on_is_said_in_full():
    from lazy_runtime.platform import xla_devices

    assert requirements.of(xla_devices.get()).keys() == {
        "openxla-torch", "jaxlib", "torch", "platform", "device", "processor"
    }  # fmt: skip
