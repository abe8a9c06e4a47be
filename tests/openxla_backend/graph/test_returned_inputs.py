"""Outputs that are inputs which a graph writes to, beside writes that are left to AOTAutograd's runtime."""

import pytest
import torch
from torch import nn


def _first_scaled(first, second, x):
    first.mul_(2)
    return (first * x).sum(), second.add_(1)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # Dynamo looks at it
@pytest.mark.parametrize("device", ["cpu", "xla"])
def test_an_output_beside_a_returned_input_is_kept(device):
    compiled = torch.compile(_first_scaled, backend="openxla")
    first = torch.tensor([1.0, 2.0, 3.0], device=device, requires_grad=True).clone()
    second = torch.zeros(2, device=device)
    total, returned = compiled(first, second, torch.ones(3, device=device))
    assert total.item() == 12.0
    assert returned.tolist() == second.tolist() == [1.0, 1.0]
    assert first.tolist() == [2.0, 4.0, 6.0]


def _trained(device, compile):
    """The losses and the weight of an embedding that its forward pass writes to, and whose gradient is kept."""
    torch.manual_seed(0)
    model = nn.Embedding(6, 3, max_norm=1.0).double().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x):
        optimizer.zero_grad(set_to_none=False)
        loss = model(x).mean()
        loss.backward()
        optimizer.step()
        return loss

    step = compile(step)
    losses = [step(torch.tensor([[0, 5, number]], device=device)).detach().cpu() for number in range(3)]
    return torch.stack(losses), model.weight.detach().cpu(), model.weight.grad.cpu()


def test_a_step_keeps_its_loss_beside_the_gradients_that_it_keeps():
    expected = _trained("cpu", lambda step: step)
    found = _trained("xla", lambda step: torch.compile(step, backend="openxla"))
    torch.testing.assert_close(found, expected)
