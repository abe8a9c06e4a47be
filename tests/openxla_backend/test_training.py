"""Forward and backward through AOTAutograd: gradients, statistics, hooks, dropout, errors that eager torch gives."""

import copy

import pytest
import torch

from tests.openxla_backend.helpers import assert_same, compiled, counting, to

# torch's own, while Dynamo traces: it looks at `.grad` of any tensor, and instantiates autograd functions
pytestmark = [
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),
]

WORK = ("DynamoExtractCompiledGraph", "UncachedCompile", "ExecuteComputation")


def gradients(module):
    return [parameter.grad for parameter in module.parameters()]


def both(model, device):
    """The model compiled on the device, and an eager copy of it on the CPU."""
    reference = copy.deepcopy(model)
    model = model.to(device)
    return model, compiled(model), reference


def conv_net():
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3, bias=False),
        torch.nn.BatchNorm2d(4),
        torch.nn.ReLU(inplace=True),
        torch.nn.Flatten(),
        torch.nn.Linear(4 * 36, 5),
    )


def test_steps_of_sgd(device):
    torch.manual_seed(0)
    model, fast, reference = both(conv_net(), device)
    parameters, buffers = list(model.parameters()), list(model.buffers())
    mine = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    theirs = torch.optim.SGD(reference.parameters(), lr=0.05, momentum=0.9)
    for _ in range(3):
        x = torch.randn(2, 3, 8, 8)
        for function, optimizer, batch in ((fast, mine, x.to(device)), (reference, theirs, x)):
            optimizer.zero_grad()
            function(batch).square().mean().backward()
            optimizer.step()
        assert_same(gradients(model), gradients(reference), device, tolerance=1e-4)
    assert_same(list(model.state_dict().values()), list(reference.state_dict().values()), device, tolerance=1e-4)
    assert all(a is b for a, b in zip(parameters, model.parameters(), strict=True))
    assert all(a is b for a, b in zip(buffers, model.buffers(), strict=True))


def test_batch_norm_statistics_reach_aliases(device):
    model, fast, reference = both(torch.nn.BatchNorm1d(3), device)
    alias, version = model.running_mean[1:], model.running_mean._version
    x = torch.randn(8, 3)
    fast(x.to(device))
    reference(x)
    assert_same(list(model.buffers()), list(reference.buffers()), device)
    assert_same(alias, reference.running_mean[1:], device)
    assert model.running_mean._version > version


def test_one_execution_each_way():
    """On plain tensors; on xla both are one (`test_step.py`)."""
    model, fast, _ = both(conv_net(), "cpu")
    x = torch.randn(2, 3, 8, 8)
    gradient = torch.randn(2, 5)
    fast(x).backward(gradient)
    with counting(*WORK) as counts:
        y = fast(x)
    assert counts == {"DynamoExtractCompiledGraph": 0, "UncachedCompile": 0, "ExecuteComputation": 1}
    model.zero_grad()
    with counting(*WORK) as counts:
        y.backward(gradient)
    assert counts == {"DynamoExtractCompiledGraph": 0, "UncachedCompile": 0, "ExecuteComputation": 1}


def test_backward_is_compiled_only_if_it_is_run(device):
    _, fast, _ = both(torch.nn.Linear(3, 2), device)
    with counting("DynamoExtractCompiledGraph") as counts:
        y = fast(torch.randn(4, 3).to(device))
    assert counts["DynamoExtractCompiledGraph"] == 1
    with counting("DynamoExtractCompiledGraph") as counts:
        y.sum().backward()
    assert counts["DynamoExtractCompiledGraph"] == 1


def test_gradient_accumulation(device):
    model, fast, reference = both(torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh()), device)
    for _ in range(3):
        x = torch.randn(2, 3)
        fast(x.to(device)).sum().backward()
        reference(x).sum().backward()
    assert_same(gradients(model), gradients(reference), device)


def test_double_use_and_retain_graph(device):
    model, fast, reference = both(torch.nn.Linear(3, 3), device)
    x = torch.randn(2, 3)

    def run(function, x):
        x.requires_grad_()
        y = function(function(x))
        y.sum().backward(retain_graph=True)
        y.square().sum().backward()
        return x.grad

    assert_same(run(fast, x.clone().to(device)), run(reference, x.clone()), device)
    assert_same(gradients(model), gradients(reference), device)


def test_backward_twice_without_retain_graph(device):
    y = compiled(lambda x: (x * x).sum())(torch.randn(3).to(device).requires_grad_())
    y.backward()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        y.backward()


def test_tied_weights(device):
    class Tied(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = torch.nn.Embedding(10, 4)
            self.head = torch.nn.Linear(4, 10, bias=False)
            self.head.weight = self.embedding.weight

        def forward(self, tokens):
            return self.head(self.embedding(tokens))

    reference, model = Tied(), Tied()
    model.load_state_dict(reference.state_dict())
    model = model.to(device)
    tokens = torch.tensor([[1, 2], [3, 9]])
    compiled(model)(tokens.to(device)).square().sum().backward()
    reference(tokens).square().sum().backward()
    assert len(gradients(model)) == 1
    assert_same(gradients(model), gradients(reference), device, tolerance=1e-4)


def test_dropout_uses_one_mask_both_ways(device):
    x = torch.ones(1000).to(device).requires_grad_()
    fast = compiled(lambda x: torch.nn.functional.dropout(x, 0.5) * 3)
    torch.manual_seed(5)
    y = fast(x)
    y.sum().backward()
    assert torch.equal(y.detach().cpu(), x.grad.cpu())
    assert set(y.detach().cpu().tolist()) == {0.0, 6.0}
    other = fast(x)
    assert not torch.equal(y.detach().cpu(), other.detach().cpu())
    torch.manual_seed(5)
    assert torch.equal(fast(x).detach().cpu(), y.detach().cpu())


def test_autograd_function(device):
    class Scale(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, k):
            ctx.save_for_backward(x)
            ctx.k = k
            return x * k

        @staticmethod
        def backward(ctx, gradient):
            (x,) = ctx.saved_tensors
            return gradient * ctx.k + x, None

    def run(function, x):
        x.requires_grad_()
        function(x).sum().backward()
        return x.grad

    def f(x):
        return Scale.apply(x.sin(), 3.0)

    x = torch.randn(4)
    assert_same(run(compiled(f), x.clone().to(device)), run(f, x.clone()), device)


def test_mutated_input_that_needs_a_gradient(device):
    def f(x, buffer):
        x.mul_(2)
        buffer.add_(x.detach())
        return x * buffer

    def run(function, device):
        leaf = torch.arange(4.0).to(device).requires_grad_()
        x, buffer = leaf * 1, torch.ones(4).to(device)
        function(x, buffer).sum().backward()
        return leaf.grad, x.detach(), buffer

    assert_same(run(compiled(f), device), run(f, "cpu"), device)


def test_outputs_that_are_views(device):
    def f(x):
        y = x * 2
        return y, y.t(), x.view(-1), y.detach(), (x > 0)

    def run(function, x):
        x.requires_grad_()
        y, transposed, flat, detached, positive = function(x)
        (y.sum() + (transposed * transposed).sum() + flat.sum()).backward()
        return x.grad, y, transposed, flat, detached, positive

    x = torch.randn(2, 3)
    actual, expected = run(compiled(f), x.clone().to(device)), run(f, x.clone())
    assert_same(actual, expected, device)
    with torch.no_grad():
        actual[1].zero_()
    assert actual[4].abs().sum().item() == 0


def test_some_outputs_unused_and_some_inputs_without_gradient(device):
    def f(x, w, n):
        return x @ w, (w * n).sum(), None

    def run(function, x, w):
        w.requires_grad_()
        _, total, none = function(x, w, 3)
        total.backward()
        return w.grad, x.grad, none

    x, w = torch.randn(2, 3), torch.randn(3, 4)
    assert_same(run(compiled(f), *to((x, w), device)), run(f, x, w), device)


def test_hooks(device):
    seen = []
    model, fast, reference = both(torch.nn.Linear(3, 2), device)
    x = torch.randn(2, 3)

    def run(module, function, x):
        module.weight.register_hook(lambda gradient: gradient * 2)
        y = function(x)
        y.register_hook(lambda gradient: seen.append(gradient.shape))
        y.sum().backward()
        return module.weight.grad

    assert_same(run(model, fast, x.to(device)), run(reference, reference, x), device)
    assert seen == [torch.Size([2, 2])] * 2


def test_gradient_of_inputs_with_any_strides(device):
    def f(x, y):
        return (x.t() @ y).relu()

    def run(function, x, y):
        x, y = x.requires_grad_(), y.requires_grad_()
        out = function(x.t()[:, ::2], y)
        out.backward(torch.ones_like(out).t().contiguous().t())  # a tangent in another memory order
        return out, x.grad, y.grad

    x, y = torch.randn(6, 5), torch.randn(5, 3)
    assert_same(run(compiled(f), *to((x, y), device)), run(f, x, y), device)


def test_graph_break_in_training(device):
    def f(x):
        y = x.sin()
        torch._dynamo.graph_break()
        return y.cos() * x

    def run(function, x):
        x.requires_grad_()
        function(x).sum().backward()
        return x.grad

    x = torch.randn(4)
    assert_same(run(compiled(f), x.clone().to(device)), run(f, x.clone()), device)


def test_channels_last_training():
    torch.manual_seed(1)
    model = conv_net().to(memory_format=torch.channels_last)
    model, fast, reference = both(model, "cpu")
    for _ in range(2):
        x = torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last)
        assert_same(fast(x), reference(x), tolerance=1e-4)
        fast(x).square().sum().backward()
        reference(x).square().sum().backward()
    assert_same(gradients(model), gradients(reference), strides=False, tolerance=1e-3)


def test_changing_batch_sizes(device):
    torch.manual_seed(0)
    model, fast, reference = both(torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.GELU()), device)
    for batch in (4, 2, 7, 1, 3, 4, 2):
        x = torch.randn(batch, 3)
        fast(x.to(device)).square().sum().backward()
        reference(x).square().sum().backward()
        assert_same(gradients(model), gradients(reference), device, tolerance=1e-4)
    with counting(*WORK) as counts:
        fast(torch.randn(7, 3).to(device)).backward(torch.ones(7, 4).to(device))
    assert counts["DynamoExtractCompiledGraph"] == counts["UncachedCompile"] == 0


def test_backward_graph_without_symbols_among_its_arguments(device):
    def run(function, x):
        x.requires_grad_()
        function(x).backward(torch.ones_like(x))
        return x.grad

    fast = compiled(torch.sin)
    for size in (3, 4, 5, 4):
        x = torch.randn(size)
        assert_same(run(fast, x.clone().to(device)), run(torch.sin, x.clone()), device)
