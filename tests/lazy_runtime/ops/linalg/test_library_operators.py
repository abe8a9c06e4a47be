"""Operators of other libraries: what they mean, and that torch's own operators compute them."""

from __future__ import annotations

import pytest
import torch
import transformers.integrations.moe  # noqa: F401  registers its operators

from lazy_runtime.common import metrics
from tests.lazy_runtime.ops.comparison import check, rand

experts = torch.ops.transformers.grouped_mm_fallback.default

CALLED = "aten::grouped_mm_fallback"


@pytest.fixture(params=["xla", "compiled on xla", "compiled on the CPU"])
def road(request):
    """What `check` takes for each of the ways that an operator comes to XLA."""
    torch._dynamo.reset()
    device = "cpu" if "CPU" in request.param else "xla"
    compiled = torch.compile(lambda x, weight, offs: experts(x, weight, offs), backend="openxla")
    return {"device": device, "on": compiled if "compiled" in request.param else experts}


@pytest.mark.parametrize("ends", [[3, 3, 10], [0, 0, 0], [2, 5, 7], [10, 10, 10]], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("is_transposed", [False, True])
def test_experts(road, ends, dtype, is_transposed):
    weight = rand(3, 16, 8, dtype=dtype).transpose(1, 2) if is_transposed else rand(3, 8, 16, dtype=dtype)
    check(experts, rand(10, 8, dtype=dtype), weight, torch.tensor(ends, dtype=torch.int32), **road)
    assert not metrics.value(CALLED)
    assert not metrics.value(f"{CALLED}_backward")


@pytest.mark.parametrize(("inner", "columns"), [(5, 8), (8, 5)])
def test_rows_that_torchs_product_does_not_take(road, inner, columns):
    check(experts, rand(10, inner), rand(3, inner, columns), torch.tensor([3, 3, 10]), **road)
    assert metrics.value(CALLED) or road["on"] is not experts  # compiled functions count none
