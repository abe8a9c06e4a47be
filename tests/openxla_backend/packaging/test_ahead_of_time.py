"""torch's own way to save a compiled function."""

import io

import pytest
import torch
from torch import nn

from tests.openxla_backend.helpers import counting


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.linear = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Linear(8, 4)

    def forward(self, x, scale=2.0):
        return self.linear(self.norm(self.conv(x)).relu().mean((2, 3))) * scale, x


def compiled(model, x):
    function = torch.compile(model, backend="openxla", fullgraph=True)
    return function.forward.aot_compile(((x,), {}))


@pytest.mark.parametrize("device", ["cpu", "xla"])
def test_it_is_saved_and_loaded(device, tmp_path):
    torch.manual_seed(0)
    model, x = Model().eval().to(device), torch.randn(2, 3, 8, 8, device=device)
    with torch.no_grad():
        function = compiled(model, x)
        function.save_compiled_function(str(tmp_path / "p"), external_data={"model": model})
        expected = function(model, x)
        torch._dynamo.reset()
        with open(tmp_path / "p", "rb") as file:
            loaded = torch.compiler.load_compiled_function(file, external_data={"model": model})
        with counting("UncachedCompile") as counts:
            found = loaded(model, x)
        assert counts == {"UncachedCompile": 0}
        for mine, theirs, eagers in zip(found, expected, model(x), strict=True):
            torch.testing.assert_close(mine.cpu(), theirs.cpu())
            torch.testing.assert_close(mine.cpu(), eagers.cpu(), rtol=1e-4, atol=1e-5)


def test_training_is_refused(tmp_path):
    model, x = Model().eval(), torch.randn(2, 3, 8, 8)
    function = compiled(model, x)
    with pytest.raises(
        NotImplementedError, match=r"only inference can be saved: call aot_compile under torch\.no_grad"
    ):
        function.save_compiled_function(str(tmp_path / "p"), external_data={"model": model})
    assert not (tmp_path / "p").exists()


def test_a_loaded_one_is_not_saved_again(tmp_path):
    model, x = Model().eval().requires_grad_(False), torch.randn(2, 3, 8, 8)
    function = compiled(model, x)
    function.save_compiled_function(str(tmp_path / "p"), external_data={"model": model})
    content = io.BytesIO((tmp_path / "p").read_bytes())
    loaded = torch.compiler.load_compiled_function(content, external_data={"model": model})
    with pytest.raises(NotImplementedError, match="keep the file that it came from"):
        loaded.save_compiled_function(str(tmp_path / "q"), external_data={"model": model})
