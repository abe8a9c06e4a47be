"""What the operator runner takes for a difference."""

import pytest
import torch

from tests.operators.compare import Comparison, Result, result_of


def difference(expected, result, **options):
    return Comparison("add", "forward", **options).difference(expected, result)


def differs(expected, result, **options):
    return difference(result_of(expected, "cpu"), result_of(result, "cpu"), **options)


def test_equal_results():
    x = torch.tensor([1.0, float("nan"), float("inf")])
    assert differs((x, [1, None]), (x + 1e-7, [1, None])) is None
    assert differs(torch.tensor(0), torch.tensor(0)) is None


@pytest.mark.parametrize(
    ("expected", "result", "words"),
    [
        (torch.ones(2), torch.ones(2, dtype=torch.float64), "dtype torch.float64 instead of torch.float32"),
        (torch.ones(2), torch.ones(3), "shape (3,) instead of (2,)"),
        (torch.ones(2, 3), torch.ones(3, 2).t(), "stride (1, 2) instead of (3, 1)"),
        (torch.ones(2), torch.ones(2) + 1e-3, "values differ"),
        (torch.tensor([1]), torch.tensor([2]), "values differ"),
        (torch.tensor([0.0]), torch.tensor([float("nan")]), "values differ"),
        ((torch.ones(2),), [torch.ones(2)], "structure"),
        ([torch.ones(2)], [1.0], "float instead of a tensor"),
        (torch.max(torch.ones(2), 0), torch.min(torch.ones(2), 0), "structure"),
        ([True], [False], "values differ"),
        ([1], [True], "bool instead of int"),
    ],
)
def test_differences(expected, result, words):
    assert words in differs(expected, result)


def test_strides_of_single_elements_and_of_nothing_do_not_show():
    assert differs(torch.empty(1, 3), torch.empty_strided((1, 3), (7, 1)), values=False) is None
    assert differs(torch.empty(0, 3), torch.empty_strided((0, 3), (1, 1))) is None


def test_a_result_on_another_device():
    on_cpu = result_of(torch.ones(2), "cpu")
    elsewhere = Result(on_cpu.leaves, on_cpu.structure, "xla")
    assert "not on the xla device" in difference(on_cpu, elsewhere)


def test_errors():
    def raised(error):
        return Result(error=error)

    expected = raised(RuntimeError("on cpu: bad"))
    assert difference(expected, raised(RuntimeError("on xla:0: bad"))) is None
    assert difference(expected, raised(RuntimeError("on cpu: bad\n  aten::gather, called at a.py:3"))) is None
    assert "instead of" in difference(expected, raised(ValueError("on cpu: bad")))
    assert "instead of" in difference(expected, raised(RuntimeError("bad")))
    assert "does not raise" in difference(expected, result_of(1, "cpu"))
    assert difference(result_of(1, "cpu"), expected) == "RuntimeError: on cpu: bad"


def test_what_is_right_where_the_cpu_has_rounded():
    expected, result, exact = (
        result_of(x, "cpu")
        for x in (
            torch.tensor([1.0, 2.25], dtype=torch.bfloat16),
            torch.tensor([1.0, 2.0], dtype=torch.bfloat16),
            torch.tensor([1.0, 2.001], dtype=torch.float64),
        )
    )
    assert "values differ" in Comparison("add", "forward").difference(expected, result)
    assert Comparison("add", "forward").difference(expected, result, lambda: exact) is None
    assert "values differ" in Comparison("add", "forward").difference(expected, result, lambda: expected)


def test_arguments_in_the_words_of_a_wrong_call_do_not_count():
    words = "torch.add() failed to match any schema: got"
    expected, other = (
        Result(error=RuntimeError(f"{words} tensor([1.]{device})")) for device in ("", ", device='xla:0'")
    )
    assert difference(expected, other) is None
