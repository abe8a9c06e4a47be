import pytest
import torch

from benchmarks import models, roofline


def test_operations_of_a_product_and_a_convolution():
    linear = torch.nn.Linear(30, 20).eval()
    assert roofline.flops(linear, [torch.zeros(10, 30)]) == 2 * 10 * 30 * 20
    grouped = torch.nn.Conv2d(8, 8, 3, groups=8, bias=False).eval()
    assert roofline.flops(grouped, [torch.zeros(1, 8, 5, 5)]) == 2 * 8 * 9 * 3 * 3
    assert roofline.flops(grouped.train(), [torch.zeros(1, 8, 5, 5)]) == 3 * 2 * 8 * 9 * 3 * 3


def test_what_takes_longer_is_the_bound():
    speeds = {"gflops": 100.0, "read_gbytes": 10.0}
    assert roofline.milliseconds("inference", 1e9, 10e6, **speeds) == pytest.approx(10)
    assert roofline.milliseconds("inference", 1e9, 200e6, **speeds) == pytest.approx(20)
    assert roofline.milliseconds("training", 3e9, 200e6, **speeds) == pytest.approx(40)
    assert roofline.milliseconds("step", 3e9, 200e6, gflops=100.0) == pytest.approx(30)


def test_of_tables_rows_are_read():
    model = torch.nn.ModuleList([torch.nn.Linear(3, 5), torch.nn.Embedding(7, 3), torch.nn.EmbeddingBag(7, 3)])
    assert roofline.weight_bytes(model) == 4 * (3 * 5 + 5)


@pytest.mark.parametrize("name", ["llama", "lstm"])
def test_a_language_model_multiplies_each_token_by_each_weight(name):
    model = models.build(name).train()
    (tokens,) = models.example(name, 1)
    products = 3 * 2 * tokens.numel() * roofline.weight_bytes(model) / 4
    assert 0.99 * products < roofline.flops(model, [tokens]) < 1.2 * products  # no biases, and attention on top


@pytest.mark.parametrize(("name", "gflops"), [("squeezenet1_1", 0.70), ("timm_vision_transformer", 9.2)])
def test_models_have_the_operations_that_are_published(name, gflops):
    model = models.build(name).eval()
    assert roofline.flops(model, models.example(name, 1)) == pytest.approx(gflops * 1e9, rel=0.02)
    assert all(parameter.device.type == "cpu" for parameter in model.parameters())
