"""Equal numbers of a loop over parameters are one input of the program."""

from __future__ import annotations

import pytest
import torch

import lazy_runtime
from lazy_runtime import debug
from lazy_runtime.common import metrics
from lazy_runtime.compilation import compiler, linearization
from lazy_runtime.debug import compiling
from lazy_runtime.ir import scalar_deduplication
from lazy_runtime.platform import xla_devices

COUNT = scalar_deduplication.LEAST


def pending_graph():
    device = xla_devices.get(torch.device("xla", 0))
    return linearization.linearize(device, device.pending[:], donate=False).graph


def tensors(count: int = COUNT) -> list[torch.Tensor]:
    made = [torch.full((3,), float(number), device="xla") for number in range(count)]
    lazy_runtime.sync()
    metrics.clear()
    return made


def scaled(xs: list[torch.Tensor], numbers: list[float]) -> list[list[float]]:
    """Each tensor by its number, in one program."""
    results = [x * number for x, number in zip(xs, numbers, strict=True)]
    lazy_runtime.sync()
    return [result.tolist() for result in results]


def test_many_equal_numbers_are_one():
    kept = [x * 2.5 + 3.5 for x in tensors()]
    assert pending_graph().floats == 2
    assert [x.tolist() for x in kept] == [[2.5 * number + 3.5] * 3 for number in range(COUNT)]


def test_a_few_equal_numbers_stay_several():
    kept = [x * 2.5 for x in tensors(COUNT - 1)]
    assert pending_graph().floats == len(kept)


def test_operators_do_not_share():
    xs = tensors()
    kept = [x * 2.5 for x in xs], [x + 2.5 for x in xs]
    assert pending_graph().floats == len(kept)


def test_arguments_of_an_operator_do_not_share():
    kept = [torch.add(x, 2.5, alpha=2.5) for x in tensors()]
    assert pending_graph().floats == 2
    assert kept[0].tolist() == [6.25] * 3


def test_what_differs_keeps_its_own():
    xs = tensors(COUNT + 2)
    numbers = [7.5, *[2.5] * COUNT, 8.5]
    kept = [x * number for x, number in zip(xs, numbers, strict=True)]
    assert pending_graph().floats == 3
    assert [x.tolist()[0] for x in kept] == [x * number for x, number in enumerate(numbers)]


def test_another_value_of_all_is_no_other_program():
    xs = tensors()
    for number in (2.5, 3.5, 4.5):
        assert scaled(xs, [number] * COUNT) == [[number * x] * 3 for x in range(COUNT)]
    assert metrics.value("UncachedCompile") == 1


def test_numbers_that_differ_in_turns_are_compiled_for_thrice_at_most():
    compiler.clear()
    xs = tensors(2 * COUNT)
    for different in range(8):
        numbers = [2.5] * (2 * COUNT)
        numbers[different] = 4.5
        assert scaled(xs, numbers) == [[numbers[x] * x] * 3 for x in range(2 * COUNT)]
    assert metrics.value("UncachedCompile") == scalar_deduplication.MOST + 1


def test_those_that_were_equal_once_are_found_again():
    compiler.clear()
    xs = tensors(2 * COUNT)
    patterns = [[2.5] * (2 * COUNT), [2.5] * COUNT + [3.5] * COUNT]
    for numbers in [*patterns, *patterns]:
        assert scaled(xs, numbers) == [[numbers[x] * x] * 3 for x in range(2 * COUNT)]
    assert metrics.value("UncachedCompile") == 2


def test_the_reason_for_another_program_is_said():
    compiler.clear()
    xs = tensors(2 * COUNT)
    compiling.clear()  # it remembers a bounded number, so that a count of them may stay
    for numbers in ([2.5] * (2 * COUNT), [2.5] * COUNT + [3.5] * COUNT):
        scaled(xs, numbers)
    (found,) = debug.recompiles()
    assert "were equal differ now" in found.reason


def test_a_number_that_is_none_is_like_no_other():
    kept = [x * float("nan") for x in tensors()]
    assert kept[0].isnan().all()


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=1e-2, nesterov=True),
        lambda parameters: torch.optim.AdamW(parameters, lr=0.01, weight_decay=1e-2),
        lambda parameters: torch.optim.RMSprop(parameters, lr=0.01, momentum=0.9),
    ],
)
def test_an_optimizer_with_a_schedule(optimizer):
    """Its step reads few numbers, and gives what it gives on the CPU."""

    def train(device: str) -> list[torch.Tensor]:
        torch.manual_seed(0)
        parameters = [torch.nn.Parameter(torch.randn(3).to(device)) for _ in range(COUNT + 2)]
        steps = optimizer([{"params": parameters[:2], "lr": 0.02}, {"params": parameters[2:]}])
        schedule = torch.optim.lr_scheduler.ExponentialLR(steps, 0.9)
        for _ in range(4):
            sum((x * x).sum() for x in parameters).backward()
            steps.step()
            steps.zero_grad()
            schedule.step()
            if device == "xla":
                assert pending_graph().floats < COUNT
                lazy_runtime.sync()
        return [x.detach().cpu() for x in parameters]

    torch.testing.assert_close(train("xla"), train("cpu"))
