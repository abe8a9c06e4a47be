"""Loops that make integer tensors longer compile one program for their turns, with the CPU's values."""

from __future__ import annotations

import pytest
import torch

import lazy_runtime
from lazy_runtime.common import metrics
from lazy_runtime.execution import execute, growing
from lazy_runtime.platform import xla_devices

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


def test_the_end_of_a_step_leaves_a_concatenation_and_a_sync_of_the_device_does_not():
    device = xla_devices.get(0)
    tokens = generate("xla", torch.arange(4).view(1, 4), TURNS, "sync")
    assert [node.call.name for node in device.pending] == ["aten::cat"]
    execute.sync(device)
    assert not device.pending
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
