"""Compiled once: what later calls cost in traces, compiles and executions; sizes, threads, devices."""

import threading

import torch

from tests.openxla_backend.helpers import assert_same, compiled, counting

WORK = ("DynamoExtractCompiledGraph", "UncachedCompile", "ExecuteComputation")
ONE_RUN = {"DynamoExtractCompiledGraph": 0, "UncachedCompile": 0, "ExecuteComputation": 1}


def test_second_call_only_executes(device):
    model = torch.nn.Sequential(torch.nn.Linear(3, 7), torch.nn.ReLU(), torch.nn.Linear(7, 2)).to(device)
    fast, x = compiled(model), torch.randn(5, 3).to(device)
    with torch.no_grad():
        with counting(*WORK) as counts:
            fast(x)
        # on xla, what depends on parameters alone is a program of its own, run once
        assert counts["DynamoExtractCompiledGraph"] == counts["ExecuteComputation"] == (2 if device == "xla" else 1)
        for _ in range(2):
            with counting(*WORK) as counts:
                fast(x)
            assert counts == ONE_RUN


def test_one_execution_with_views_mutations_and_random_numbers(device):
    def f(x, y):
        y.add_(x)
        z = x * torch.rand_like(x)
        return z, z[0], y.t()

    x, y = torch.randn(3, 3).to(device), torch.randn(3, 3).to(device)
    fast = compiled(f)
    fast(x, y)
    with counting(*WORK) as counts:
        fast(x, y)
    assert counts == ONE_RUN


def test_a_size_is_traced_once(device):
    def f(x):
        return x.reshape(-1, x.shape[0]).sum(1) * x.shape[0], x.shape[0] + 1

    fast = compiled(f)
    for size in (4, 6, 1, 8, 2, 4):
        x = torch.randn(size, 3)
        assert_same(fast(x.to(device)), f(x), device)
    with counting(*WORK) as counts:
        for size in (4, 6, 8, 2):
            fast(torch.randn(size, 3).to(device))
    assert counts == {**ONE_RUN, "ExecuteComputation": 4}
    with counting(*WORK) as counts:
        x = torch.randn(9, 3)
        assert_same(fast(x.to(device)), f(x), device)
    assert counts["DynamoExtractCompiledGraph"] == counts["UncachedCompile"] == 1


def test_one_dynamo_graph_for_all_sizes(device):
    torch._dynamo.utils.counters.clear()
    fast = compiled(lambda x: x.sin().sum(0))
    for size in (4, 6, 8, 10):
        x = torch.randn(size, 3)
        assert_same(fast(x.to(device)), x.sin().sum(0), device)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 2  # the static first one, then the symbolic


def test_dynamic_from_the_start(device):
    torch._dynamo.utils.counters.clear()
    fast = compiled(lambda x, y: torch.cat([x, y], 1) * x.shape[0], dynamic=True)
    for rows, columns in ((3, 4), (5, 4), (5, 6)):
        x, y = torch.randn(rows, columns), torch.randn(rows, 2)
        assert_same(fast(x.to(device), y.to(device)), torch.cat([x, y], 1) * rows, device)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


def test_dynamic_strides():
    fast = compiled(lambda x: (x.t() + 1, x.t()[1:] * 2), dynamic=True)
    for size in (3, 5):
        x = torch.randn(size, 4)
        assert_same(fast(x), (x.t() + 1, x.t()[1:] * 2))


def test_threads(device):
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh())
    inputs = [torch.randn(2, 4) for _ in range(8)]
    expected = [model(x).detach() for x in inputs]
    fast = compiled(model.to(device))
    actual, failures = {}, []
    if torch.__version__ < (2, 13):  # which breaks down where several threads compile at once, with any backend
        with torch.no_grad():
            fast(inputs[0].to(device))

    def work(number):
        try:
            for _ in range(5):
                with torch.no_grad():
                    actual[number] = fast(inputs[number].to(device)).cpu()
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(inputs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert_same([actual[number] for number in range(len(inputs))], expected)


def test_several_devices(forked_process):
    forked_process(
        """
        import torch
        import lazy_runtime
        from lazy_runtime.common import metrics
        assert lazy_runtime.device_count() == 2
        model = torch.nn.Linear(3, 2)
        x = torch.randn(4, 3)
        expected = model(x)
        for index in (0, 1, 0):
            device = torch.device("xla", index)
            mine = torch.nn.Linear(3, 2)
            mine.load_state_dict(model.state_dict())
            fast = torch.compile(mine.to(device), backend="openxla")
            y = fast(x.to(device))
            assert y.device == device
            torch.testing.assert_close(y.detach().cpu(), expected.detach())
            y.sum().backward()
            assert mine.weight.grad.device == device
            grad = torch.autograd.grad(model(x).sum(), model.weight)[0]
            torch.testing.assert_close(mine.weight.grad.cpu(), grad)
        fast = torch.compile(lambda x, y: (x + 1, y + 1), backend="openxla")
        try:
            fast(torch.ones(2, device="xla:0"), torch.ones(2, device="xla:1"))
        except Exception as error:
            assert "several xla devices (xla:0, xla:1)" in str(error), error
        else:
            raise AssertionError("two devices in one graph went through")
        """,
        CPU_NUM_DEVICES="2",
    )
