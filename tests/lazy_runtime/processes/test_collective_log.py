"""The collectives of a rank, in order: what each is, who meets in it, and which are known."""

from __future__ import annotations

import jax.numpy as jnp
import torch

from lazy_runtime.compilation import lower
from lazy_runtime.processes import collective_log
from lazy_runtime.processes.collective_log import Collective, Entry, Log, Program, shown
from tests.lazy_runtime.graphs import buffers, number

ours = torch.ops.lazy_runtime


def graph_of(function):
    """The function's graph, of a vector and a matrix."""
    return number(function, *buffers(torch.ones(4), torch.ones(2, 3, dtype=torch.float64)))[0].graph


def groups(function, rank):
    """Who meets in a function's collectives, as one of four ranks sees it, and where in the program."""
    programs = collective_log.of(graph_of(function), range(4), rank)
    return {program.ranks: [each.call for each in program.collectives] for program in programs}


def program(*texts):
    return Program([Collective(call, text, "") for call, text in enumerate(texts)], (0, 1))


def line(number):
    return f'File "train.py", line {number}, in step: loss.backward()'


# ---- of a graph


def test_a_collective_is_described_with_its_tensors_and_arguments():
    graph = graph_of(lambda x, y: ours.all_reduce([x, y], "sum", 0.5, [], 2))
    ((only,),) = [program.collectives for program in collective_log.of(graph, (0, 1), 0)]
    assert only.text == ("all_reduce(tensors=[float32[4], float64[2, 3]], kind='sum', scale=0.5, members=[], size=2)")


def test_what_each_rank_has_of_its_own_is_left_out():
    def parts(sizes, place):
        graph = graph_of(lambda x, y: ours.all_to_all_parts(x, sizes, [4 - sizes[0], sizes[0]], [], place))
        return collective_log.described(graph.calls[0])

    assert parts([1, 3], 0) == parts([3, 1], 1) == "all_to_all_parts(members=[])"


def test_a_call_of_no_operator_is_described_by_its_name():
    graph = graph_of(lambda x, y: x.exp())
    assert collective_log.described(lower.nested_call(graph, {})) == "openxla::graph"


def test_a_graph_without_collectives_has_no_program():
    assert collective_log.of(graph_of(lambda x, y: (x.exp(), y.exp())), (0, 1), 0) == ()


def test_without_members_all_ranks_meet():
    def function(x, y):
        return ours.all_reduce([x.exp()], "sum", 1.0, [], 4), ours.all_gather(x, 0, [], 4)

    assert groups(function, 2) == {(0, 1, 2, 3): [1, 2]}


def test_members_meet_in_groups_of_one_size():
    def function(x, y):
        return ours.all_gather(x, 0, [0, 2, 3, 1], 2)

    assert [groups(function, rank) for rank in range(4)] == [{(0, 2): [0]}, {(1, 3): [0]}, {(0, 2): [0]}, {(1, 3): [0]}]


def test_a_message_is_between_two():
    assert groups(lambda x, y: ours.transfer(x, 3, 1), 1) == {(1, 3): [0]}


def test_each_group_has_a_program_of_its_own():
    def function(x, y):
        first = ours.all_reduce([x], "sum", 1.0, [], 4)
        second = ours.all_gather(x, 0, [0, 2, 1, 3], 2)
        return first, second, ours.all_reduce([y], "sum", 1.0, [], 4)

    assert groups(function, 1) == {(0, 1, 2, 3): [0, 2], (1, 3): [1]}


def test_collectives_of_a_nested_graph_have_its_lines_and_the_number_of_its_call():
    inner = graph_of(lambda x, y: ours.all_reduce([x.exp()], "sum", 1.0, [], 2))
    call = lower.nested_call(inner, {1: line(7)})
    outer = graph_of(lambda x, y: x.exp())
    graph = outer._replace(calls=(*outer.calls, call), operands=(-1, 0), outputs=(1,))
    (only,) = collective_log.of(graph, (0, 1), 0)
    assert [(each.call, each.line) for each in only.collectives] == [(1, line(7))]


# ---- for people


def test_a_collective_is_shown_with_its_line():
    assert shown([("all_reduce(float32[4])", line(3))]) == "all_reduce(float32[4]) at train.py:3"
    assert shown([("all_reduce(float32[4])", "")]) == "all_reduce(float32[4])"


def test_others_of_the_program_are_counted():
    found = [("all_reduce(float32[4])", line(3)), ("all_gather(float32[4])", line(4)), ("transfer(int32[1])", "")]
    assert shown(found) == "all_reduce(float32[4]) at train.py:3 and 2 more of its program"


def test_a_long_text_is_cut_in_the_middle():
    text = f"all_reduce({'float32[4], ' * 100}the end)"
    found = shown([(text, line(3))])
    assert len(found) < 320
    assert found.startswith("all_reduce(float32[4], ")
    assert found.endswith("the end) at train.py:3")
    assert shown([("x" * 300, "")]) == "x" * 300


def test_a_line_of_the_program_goes_before_that_of_the_execution():
    entry = Entry(0, Program([Collective(0, "a", ""), Collective(1, "b", line(9))], (0, 1)), {0: line(1), 1: line(2)})
    assert entry.described() == [("a", line(1)), ("b", line(9))]
    assert str(entry) == "a at train.py:1 and 1 more of its program"


def test_a_collective_without_a_line_has_an_empty_one():
    assert Entry(0, program("a", "b"), {1: line(2)}).described() == [("a", ""), ("b", line(2))]


# ---- executions


def test_an_execution_is_done_when_its_result_is_there():
    entry = Entry(0, program("a"), {})
    assert not entry.is_done  # nor started
    result = jnp.zeros(3).block_until_ready()
    entry.started(result)
    assert entry.is_done


def test_an_execution_that_has_failed_is_done():
    entry = Entry(0, program("a"), {})
    entry.started(None)
    assert entry.is_done


def test_an_execution_is_done_when_nobody_can_tell():
    for lose in (lambda result: result.delete(), lambda result: None):
        entry = Entry(0, program("a"), {})
        result = jnp.zeros(3)
        entry.started(result)
        lose(result)
        del result
        assert entry.is_done


def test_a_log_counts_collectives_and_not_executions():
    log = Log()
    first, second = program("a", "b"), program("c")
    assert [log.add(each, {}).position for each in (first, second, first)] == [0, 2, 3]
    assert log.position == 5
    assert log.before is first


def test_the_first_execution_that_is_not_done_is_found():
    log = Log()
    assert log.unfinished() is None
    entries = [log.add(program(text), {}) for text in "abc"]
    entries[0].started(None)
    entries[2].started(None)
    assert log.unfinished() is entries[1]
    entries[1].started(None)
    assert log.unfinished() is None


def test_collectives_are_found_by_position_across_executions():
    log = Log()
    for texts in ("ab", "c", "de"):
        log.add(program(*texts), {})
    texts = ["".join(text for text, _line in log.since(position, 3)) for position in range(7)]
    assert texts == ["abc", "bcd", "cde", "de", "e", "", ""]


def test_what_is_too_long_ago_is_not_known():
    log = Log()
    for number_of in range(Log.LENGTH + 2):
        log.add(program(f"a{number_of}", f"b{number_of}"), {})
    assert log.since(0, 2) is None
    assert log.since(3, 2) is None
    assert log.since(4, 2) == [("a2", ""), ("b2", "")]
    assert log.since(5, 2) == [("b2", ""), ("a3", "")]
