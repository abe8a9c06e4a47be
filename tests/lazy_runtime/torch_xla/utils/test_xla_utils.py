"""`utils.utils`."""

from __future__ import annotations

from collections import OrderedDict, namedtuple

import pytest

from lazy_runtime.torch_xla.utils import utils as xu

Pair = namedtuple("Pair", "a b")


class Batch:
    def __init__(self, **attributes):
        vars(self).update(attributes)


def test_sample_generator():
    samples = xu.SampleGenerator(data="x", sample_count=3)
    assert len(samples) == 3
    assert list(samples) == list(samples) == ["x"] * 3
    assert samples.next() == "x"


@pytest.mark.parametrize(
    ("text", "kind", "expected"),
    [("3", int, 3), ("1", bool, True), ("true", bool, True), ("0", bool, False), ("False", bool, False),
     ("2.5", float, 2.5), ("a", str, "a")],
)  # fmt: skip
def test_getenv_as(monkeypatch, text, kind, expected):
    monkeypatch.setenv("SOMETHING", text)
    assert xu.getenv_as("SOMETHING", kind) == expected
    monkeypatch.delenv("SOMETHING")
    assert xu.getenv_as("SOMETHING", kind, 9) == 9


def test_rewriting_a_nest():
    shared = [1, 2.5]
    batch = Batch(x=shared, y=Pair(1, {"k": 2}), z=Batch(name="n"))
    nest = OrderedDict(a=shared, b=(shared, {3}), c=batch, d=Pair(4, None))
    result = xu.for_each_instance_rewrite(nest, lambda x: isinstance(x, int), lambda x: x * 10)
    assert type(result) is OrderedDict
    assert (result["a"], result["b"], result["d"]) == ([10, 2.5], ([10, 2.5], {30}), Pair(40, None))
    assert result["a"] is result["b"][0] is result["c"].x
    assert (result["c"].y, result["c"].z) == (Pair(10, {"k": 20}), batch.z)
    assert (nest["a"], batch.x, batch.y) == ([1, 2.5], [1, 2.5], Pair(1, {"k": 2}))


def test_an_object_that_holds_itself():
    batch = Batch(x=1)
    batch.me = batch
    found = []
    xu.for_each_instance(batch, lambda x: isinstance(x, int), found.append)
    assert found == [1]


def test_timed():
    printed = []
    assert xu.timed(lambda: 4, msg="took ", printfn=printed.append) == 4
    assert len(printed) == 1
    assert printed[0].startswith("took 0.")


def test_parallel_work_and_ports():
    assert xu.parallel_work(2, lambda a, b: a + b, [1, 2], [10, 20]) == [11, 22]
    futures = xu.parallel_work(2, str, [1, 2], wait_results=False)
    assert [future.result() for future in futures] == ["1", "2"]
    assert len(set(xu.get_free_tcp_ports(3))) == 3
