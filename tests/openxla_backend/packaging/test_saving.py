"""What is packaged in this process is what another one loads."""

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

import lazy_runtime
from benchmarks.models import MODELS, SETS, build, example
from lazy_runtime.cache import disk_program
from lazy_runtime.cache.disk_key import UncacheableError
from tests.openxla_backend.helpers import counting
from tests.openxla_backend.packaging.models import TRANSFORMERS, Case

DEVICES = ("cpu", "xla")


@pytest.fixture(autouse=True)
def own_key(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


def tensors(value):
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def on(device, value):
    return pytree.tree_map_only(torch.Tensor, lambda x: x.to(device), value)


def round_trip(case: Case, device: str, path) -> None:
    model, args, kwargs = case.model.to(device), on(device, case.args), on(device, case.kwargs)
    with torch.no_grad():
        expected = model.cpu()(*case.args, **case.kwargs)
    model.to(device)
    lazy_runtime.package(model, args, path, kwargs=kwargs)
    loaded = lazy_runtime.load(path)
    for _ in range(2):
        with counting("UncachedCompile") as counts:
            found = loaded(*args, **kwargs)
        assert counts == {"UncachedCompile": 0}
        assert type(found) is type(expected)
        assert len(tensors(found)) == len(tensors(expected))
        for mine, theirs in zip(tensors(found), tensors(expected), strict=True):
            assert (mine.device.type, mine.shape) == (device, theirs.shape)
            assert (
                device == "xla" or mine.stride() == theirs.clone().stride()
            )  # xla's operators have strides of their own
            # as everywhere for whole models: of a sum of thousands of terms, single elements near 0 are further off
            assert (mine.cpu() - theirs).norm() <= 1e-4 * theirs.norm()


@pytest.mark.parametrize(("name", "device"), [("bert", "cpu"), ("llama", "xla")])
def test_models(name, device, tmp_path):
    torch.manual_seed(0)
    round_trip(TRANSFORMERS[name](), device, tmp_path / "p")


@pytest.mark.long
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", TRANSFORMERS)
def test_models_of_transformers(name, device, tmp_path):
    torch.manual_seed(0)
    round_trip(TRANSFORMERS[name](), device, tmp_path / "p")


@pytest.mark.long
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", SETS["published"])
def test_published_models(name, device, tmp_path):
    image_size = max(64, MODELS[name].smallest_image or 0)
    round_trip(Case(build(name).eval(), example(name, 2, image_size), {}), device, tmp_path / "p")


class Counting(nn.Module):
    """Writes to a buffer, and to an argument."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(2, dtype=torch.int64))
        self.norm = nn.BatchNorm2d(3)

    def forward(self, x, seen, *, scale=1.0):
        self.calls.add_(1)
        seen[:2] = x.mean()
        return {"scaled": self.norm(x) * scale, "calls": self.calls, "both": (x, x)}


@pytest.mark.parametrize("device", DEVICES)
def test_what_a_call_writes_is_written(device, tmp_path):
    def make():
        torch.manual_seed(0)
        return Counting()

    torchs, ours = make(), make().to(device)
    x, seen = torch.randn(2, 3, 4, 4), torch.zeros(5)
    x_there, seen_there = x.to(device), seen.to(device)
    lazy_runtime.package(ours, (x_there, seen_there), tmp_path / "p", kwargs={"scale": 2.0})
    loaded = lazy_runtime.load(tmp_path / "p")
    for _ in range(3):
        with torch.no_grad():
            expected = torchs(x, seen, scale=2.0)
        found = loaded(x_there, seen=seen_there, scale=2.0)
        for mine, theirs in zip(tensors(found), tensors(expected), strict=True):
            torch.testing.assert_close(mine.cpu(), theirs)
        torch.testing.assert_close(seen_there.cpu(), seen)
    buffers = {"calls", "norm.running_mean", "norm.running_var", "norm.num_batches_tracked"}
    assert loaded.state.keys() == buffers
    for name in buffers:
        torch.testing.assert_close(loaded.state[name].cpu(), torchs.get_buffer(name))
    memory = [each.untyped_storage().data_ptr() for each in tensors(found)]
    if device == "cpu":
        assert len({*memory, x_there.untyped_storage().data_ptr()}) == 5


class Giving(nn.Module):
    """Gives what it has, and its argument."""

    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.randn(4, 3))
        self.register_buffer("steps", torch.arange(3))

    def forward(self, x):
        return self.table, self.table.t()[1:], self.steps, x, x.t(), self.table @ x, 7


@pytest.mark.parametrize("device", DEVICES)
def test_weights_and_arguments_as_results(device, tmp_path):
    model, x = Giving(), torch.randn(3, 3)
    expected = model(x)
    model.to(device)
    lazy_runtime.package(model, (x.to(device),), tmp_path / "p")
    found = lazy_runtime.load(tmp_path / "p")(x.to(device))
    assert found[-1] == 7
    for mine, theirs in zip(tensors(found), tensors(expected), strict=True):
        assert (mine.device.type, mine.shape) == (device, theirs.shape)
        torch.testing.assert_close(mine.cpu(), theirs.detach().cpu())  # the parameter itself has moved
    if device == "cpu":
        memory = {each.untyped_storage().data_ptr() for each in tensors(found)}
        assert len(memory) == 6


def test_a_function_and_what_torch_compile_made_of_it(tmp_path):
    def function(x, y=None, *, power):
        return x**power + (0 if y is None else y), power

    x = torch.randn(3)
    for number, called in enumerate([function, torch.compile(function, backend="openxla")]):
        lazy_runtime.package(called, (x, x + 1), tmp_path / f"{number}", kwargs={"power": 2})
        found, power = lazy_runtime.load(tmp_path / f"{number}")(x, y=x + 1, power=2)
        torch.testing.assert_close(found, x**2 + x + 1)
        assert power == 2


def test_as_many_arguments_as_there_are(tmp_path):
    def function(x, *rest, **options):
        return x + sum(rest) * options["scale"]

    x = [torch.randn(3) for _ in range(4)]
    lazy_runtime.package(function, x[:3], tmp_path / "p", kwargs={"scale": x[3]})
    loaded = lazy_runtime.load(tmp_path / "p")
    torch.testing.assert_close(loaded(*x[:3], scale=x[3]), function(*x[:3], scale=x[3]))
    with pytest.raises(TypeError, match=r"was packaged for \(x, rest\[0\], rest\[1\], scale\)"):
        loaded(*x[:2], scale=x[3])
    with pytest.raises(TypeError, match="4 positional arguments"):
        loaded(*x, scale=x[3])


def test_dropout_draws_anew(tmp_path):
    x = torch.ones(100)
    lazy_runtime.package(nn.Dropout(0.5).train(), (x,), tmp_path / "p")
    loaded = lazy_runtime.load(tmp_path / "p")
    torch.manual_seed(0)
    first, second = loaded(x), loaded(x)
    assert not torch.equal(first, second)
    torch.manual_seed(0)
    assert torch.equal(loaded(x), first)
    assert set(first.tolist()) == {0.0, 2.0}


def test_what_a_program_checks_is_checked(tmp_path):
    table = nn.Embedding(10, 4)
    lazy_runtime.package(table, (torch.tensor([1, 2]),), tmp_path / "p")
    loaded = lazy_runtime.load(tmp_path / "p")
    with pytest.raises(IndexError, match="index out of range in self"):
        loaded(torch.tensor([1, 20]))
    torch.testing.assert_close(loaded(torch.tensor([3, 9])), table(torch.tensor([3, 9])).detach())


def test_a_program_that_calls_back_into_the_process_is_refused(tmp_path, monkeypatch):
    def custom_calls(lowered):
        raise UncacheableError("it calls xla_python_cpu_callback, which belongs to this process")

    monkeypatch.setattr(disk_program, "custom_calls", custom_calls)
    with pytest.raises(NotImplementedError, match="the program cannot leave the process: it calls xla_python"):
        lazy_runtime.package(lambda x: x + 1, (torch.ones(2),), tmp_path / "p")
    assert not (tmp_path / "p").exists()


def test_operators_of_others_are_called_where_they_are_registered(tmp_path, forked_process):
    @torch.library.custom_op("tests_of_packages::double", mutates_args=())
    def double(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    double.register_fake(torch.empty_like)
    lazy_runtime.package(lambda x: double(x) + 1, (torch.ones(2),), tmp_path / "p")
    assert lazy_runtime.load(tmp_path / "p")(torch.ones(2)).tolist() == [3, 3]
    forked_process(f"""
        import lazy_runtime

        try:
            lazy_runtime.load({str(tmp_path / "p")!r})
        except ValueError as error:
            assert "calls tests_of_packages::double: import the library that defines this operator" in str(error)
        else:
            raise AssertionError
    """)


def test_what_a_package_cannot_hold_is_refused(tmp_path):
    x = torch.ones(2, 2)
    with pytest.raises(TypeError, match=r"^y is of type builtins\.object: a package holds tensors"):
        lazy_runtime.package(lambda x, y: x, (x, object()), tmp_path / "p")
    with pytest.raises(NotImplementedError, match="one tensor is two of the arguments"):
        lazy_runtime.package(lambda x, y: x + y, (x, x), tmp_path / "p")
    with pytest.raises(NotImplementedError, match=r"the call has tensors on cpu, xla:0: move the module"):
        lazy_runtime.package(lambda x, y: x + y.cpu(), (x, x.to("xla")), tmp_path / "p")
    with pytest.raises(TypeError, match="2 arguments, but the function has 1 positional"):
        lazy_runtime.package(lambda x: x, (x, x + 1), tmp_path / "p")
    assert not (tmp_path / "p").exists()


def test_another_process_loads_it(tmp_path, forked_process):
    torch.manual_seed(0)
    model, args, kwargs = TRANSFORMERS["bert"]()
    path = tmp_path / "p"
    made = lazy_runtime.package(model, args, path, kwargs=kwargs, key=b"secret")
    with torch.no_grad():
        torch.save((kwargs, model(*args, **kwargs).to_tuple()), tmp_path / "expected")
    forked_process(f"""
        import sys
        import torch
        import lazy_runtime

        kwargs, expected = torch.load({str(tmp_path / "expected")!r})
        for trusted in ({{"key": b"secret"}}, {{"digest": {made.digest!r}}}):
            found = lazy_runtime.load({str(path)!r}, **trusted)(**kwargs)
            names = ("last_hidden_state", "pooler_output")
            for name, mine, theirs in zip(names, found.values(), expected, strict=True):
                assert mine is found[name] is getattr(found, name)
                torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)
        absent = {{"transformers", "torch._dynamo", "torch._inductor"}}
        assert not absent & sys.modules.keys(), absent & sys.modules.keys()
        try:
            lazy_runtime.load({str(path)!r})
        except ValueError as error:
            assert "is not signed with the user's own key" in str(error)
        else:
            raise AssertionError
    """)
