import pytest
import torch


@pytest.fixture(autouse=True)
def _fresh_dynamo():
    """Every test compiles for itself."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture(params=["cpu", "xla"])
def device(request):
    """Where a compiled function finds its tensors: in torch's own CPU memory, or on the xla device."""
    return request.param
