"""Loops that make integer tensors longer compile one program for their turns, with the CPU's values."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import lazy_runtime
from lazy_runtime.common import metrics
from lazy_runtime.execution import growing
from lazy_runtime.platform import xla_devices
from lazy_runtime.torch_xla import _XLAC

TURNS = 6


@pytest.fixture(autouse=True)
def anew(monkeypatch):
    """No concatenation has been seen, so each test finds its growth itself."""
    monkeypatch.setattr(growing, "_kinds", {})
    lazy_runtime.sync()


def compiled() -> int:
    return metrics.value("UncachedCompile")


def generate(device: str, prompt: torch.Tensor, turns: int, ends: str = "read") -> torch.Tensor:
    """Appends a token at each turn that a table of float numbers and the last token give.

    Args:
        ends: how a turn ends: by a value that is read of it, by a sync, or not at all.
    """
    table = torch.linspace(-1, 1, 23 * 23, dtype=torch.float64).view(23, 23).sin().to(device)
    tokens = prompt.to(device)
    for _ in range(turns):
        last = tokens[:, -1:].clone(memory_format=torch.contiguous_format)
        token = (table[last[:, 0]] * 3).cos().argmax(-1)
        tokens = torch.cat([tokens, token[:, None]], dim=-1)
        if ends == "read":
            assert not (tokens[:, -1] == 99).any().item()
        elif ends == "sync":
            lazy_runtime.sync()
    return tokens


@pytest.mark.parametrize("ends", ["read", "sync"])
@pytest.mark.parametrize("rows", [1, 3])
def test_turns_of_a_loop_are_one_program(ends, rows):
    prompt = torch.arange(rows * 4).view(rows, 4)
    before = compiled()
    few = generate("xla", prompt, 3, ends).cpu()
    after_few = compiled()
    many = generate("xla", prompt, TURNS, ends).cpu()
    assert compiled() == after_few > before
    expected = generate("cpu", prompt, TURNS, ends="")
    assert torch.equal(many, expected)
    assert torch.equal(few, expected[:, : few.shape[1]])


def test_turns_that_nothing_ends_are_one_graph():
    prompt = torch.arange(4).view(1, 4)
    assert torch.equal(generate("xla", prompt, TURNS, "").cpu(), generate("cpu", prompt, TURNS, ""))


def test_a_mask_that_is_padded_to_one_size_is_no_part_of_the_programs():
    def masked(device):
        scores = torch.linspace(0, 1, 16, dtype=torch.float64).to(device)
        mask = torch.tensor([[0, 1, 1]]).to(device)
        found = []
        for _ in range(TURNS):
            whole = torch.nn.functional.pad(mask.to(torch.bool), (0, 16 - mask.shape[1]))
            found.append(scores.masked_fill(~whole, 0).sum().item())
            mask = torch.cat([mask, mask.new_ones((1, 1))], dim=-1)
        return found

    assert masked("xla") == pytest.approx(masked("cpu"), abs=1e-12)
    before = compiled()
    masked("xla")
    assert compiled() == before
    assert metrics.value("ComputedOnHost") > 0


def test_results_are_whole_tensors_of_the_device():
    prompt = torch.arange(4).view(1, 4)
    tokens = generate("xla", prompt, TURNS)
    expected = generate("cpu", prompt, TURNS)
    compiled_sum = torch.compile(lambda x: x.double().mean() + x[:, -1], backend="openxla")
    assert torch.equal(compiled_sum(tokens).cpu(), expected.double().mean() + expected[:, -1])
    tokens[0, 0] = 7
    expected[0, 0] = 7
    assert torch.equal((tokens * 2 + 1).cpu(), expected * 2 + 1)
    assert tokens.sum().item() == expected.sum().item()


def test_a_read_leaves_a_concatenation_pending_and_a_sync_does_not():
    device = xla_devices.get(0)
    tokens = generate("xla", torch.arange(4).view(1, 4), TURNS)
    assert [node.call.name for node in device.pending] == ["aten::cat"]
    lazy_runtime.sync()
    assert not device.pending
    assert _XLAC._check_tensor_need_materialization([tokens]) == [False]
    assert torch.equal(tokens.cpu(), generate("cpu", torch.arange(4).view(1, 4), TURNS, ""))


def test_what_is_put_together_in_one_step_stays_in_its_program():
    metrics.clear()
    for _ in range(3):
        ids = torch.arange(6).view(2, 3).to("xla")
        end = torch.full((2, 1), 9, device="xla")
        ids = torch.cat([torch.cat([ids, end], 1), end], 1)
        assert (ids * 2).sum().item() == 2 * (15 + 36)
    assert not metrics.value("ComputedOnHost")
    assert metrics.value("ExecuteComputation") == 3


def grown(device: str) -> torch.Tensor:
    """Whole numbers from 0 on, in a vector that a loop has made longer."""
    x = torch.arange(2).to(device)
    for _ in range(4):
        x = torch.cat([x, x[-1:] + 1])
        x.sum().item()
    return x


@pytest.mark.parametrize(
    "function",
    [
        torch.bincount,
        lambda x: torch.repeat_interleave(x),
        lambda x: (x.view(2, 3).t() + 1).as_strided((4,), (1,)),
        lambda x: x.view(2, 3).t().clone().as_strided((4,), (1,)),
        lambda x: torch.unique(x % 3),
    ],
)
def test_operators_that_depend_on_values_or_on_memory(function):
    x = grown("xla")
    assert torch.equal(function(x).cpu(), function(grown("cpu")))
    x.cpu()
    assert torch.equal(function(x).cpu(), function(grown("cpu")))


def test_an_empty_vector_among_the_pieces_is_left_out_as_torch_does():
    def loop(device):
        x, nothing = torch.tensor([[1, 2]]).to(device), torch.empty(0, dtype=torch.long, device=device)
        for _ in range(TURNS):
            x = torch.cat([x, nothing, x[:, -1:] + 1], 1)
            y = x[:, -1:] * 2
            lazy_runtime.sync()
        return [x.tolist(), y.tolist()]

    assert loop("xla") == loop("cpu")


def test_two_concatenations_in_a_turn_are_no_part_of_its_program():
    def loop(device):
        x, scale = torch.tensor([[1, 2]]).to(device), torch.ones(1, 1, dtype=torch.double).to(device)
        found = []
        for _ in range(TURNS):
            token = (x[:, -1:] * scale).long()
            x = torch.cat([torch.cat([x, token], 1), token + 1], 1)
            found.append((x[:, -2:-1] * 3).item())
        return found

    first = loop("xla")
    before = compiled()
    assert first == loop("xla") == loop("cpu")
    assert compiled() == before


def test_modes_and_transforms_of_the_caller_have_no_part_in_it():
    def turn(x, table):
        return torch.cat([x, table[x[:, -1]].argmax(-1)[:, None]], 1)

    x, table = torch.tensor([[1, 2], [3, 4]]).to("xla"), torch.eye(23).to("xla")
    for _ in range(3):
        x = turn(x, table)
        with FakeTensorMode():
            lazy_runtime.sync()

    def loss(weight):
        longer = turn(x, table)
        longer = torch.cat([longer, longer[:, -1:]], 1)
        lazy_runtime.sync()
        return weight[longer].sum()

    gradient = torch.func.grad(loss)(torch.ones(23).to("xla"))
    assert gradient.tolist() == torch.bincount(torch.tensor([1, 2, 3, 4] + [2, 4] * 5), minlength=23).tolist()


def test_what_a_node_of_another_thread_reads_is_kept():
    with ThreadPoolExecutor(1) as pool:
        x, one = torch.zeros(1, 7, dtype=torch.long).to("xla"), torch.ones(1, 1, dtype=torch.long).to("xla")
        lazy_runtime.sync()
        pool.submit(lazy_runtime.sync).result()
        for _ in range(2):
            x = torch.cat([x, one], 1)
            lazy_runtime.sync()
        previous = x + 0
        lazy_runtime.sync()
        x = torch.cat([previous, one], 1)
        y = pool.submit(lambda x=x: x * 2 + 1).result()
        ordered = previous.sort(-1).values
        del x, previous
        assert ordered.tolist() == [[0] * 7 + [1] * 2]
        assert pool.submit(y.tolist).result() == [[1] * 7 + [3] * 3]


def test_the_time_of_recording_is_that_of_a_turn():
    metrics.clear()
    began = time.perf_counter_ns()
    generate("xla", torch.arange(4).view(1, 4), 20)
    _, recorded = metrics.snapshot()
    assert recorded["LazyTracing"].accumulator < time.perf_counter_ns() - began


def test_floats_and_large_tensors_stay_in_the_programs():
    metrics.clear()
    for make in (lambda n: torch.ones(1, n), lambda n: torch.ones(300, n, dtype=torch.long)):
        x = make(300).to("xla")
        for _ in range(4):
            x = torch.cat([x, make(1).to("xla")], dim=1)
            lazy_runtime.sync()
        assert x.sum().item() == x.numel()
    assert not metrics.value("ComputedOnHost")


def test_a_token_whose_program_fails_is_told_to_who_reads_it():
    tokens = generate("xla", torch.arange(4).view(1, 4), 3)
    matrix = -torch.eye(3, dtype=torch.float64)
    token = torch.linalg.cholesky(matrix.to("xla")).sum().long().view(1, 1)
    longer = torch.cat([tokens, token], dim=-1)
    with pytest.raises(torch.linalg.LinAlgError):
        longer.cpu()
    assert torch.equal(tokens.cpu(), generate("cpu", torch.arange(4).view(1, 4), 3, ""))
    tokens = torch.cat([tokens, tokens[:, :1]], dim=-1)
    assert tokens[0, -1].item() == 0
