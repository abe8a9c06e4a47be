"""Ranks that come to different collectives: here as threads, each with the part of a process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch.distributed

from lazy_runtime.processes import collective_checker, process_exit, watchdog
from lazy_runtime.processes.collective_checker import Agreement, MismatchError
from lazy_runtime.processes.collective_log import Collective, Log, Program

_dist: Any = torch.distributed


def program(*texts: str, ranks: tuple[int, ...] = (0, 1, 2)) -> Program:
    return Program([Collective(call, text, "") for call, text in enumerate(texts)], ranks)


class Job:
    """Agreements over one store, each with the thread that answers for it."""

    def __init__(self, size: int):
        self.notes = _dist.HashStore()
        self.ranks = [Agreement(rank, self.notes) for rank in range(size)]
        self.threads = [watchdog._Answering(each, self.notes) for each in self.ranks]
        for thread in self.threads:
            thread.start()

    def begin(self, rank: int, begun: Program, line: int = 1) -> Any:
        users = dict.fromkeys(range(len(begun.collectives)), f'File "train.py", line {line}, in f')
        entry = self.ranks[rank].begin(begun, users)
        entry.started(None)
        return entry

    def questions(self) -> int:
        return self.notes.add("letters/0", 0) + self.notes.add("letters/1", 0)

    def together(self, *programs: Program) -> list[BaseException | None]:
        """What each rank raises when they begin at the same time."""
        raised: list[BaseException | None] = [None] * len(programs)

        def begin(rank: int) -> None:
            try:
                self.begin(rank, programs[rank])
            except MismatchError as error:
                raised[rank] = error

        threads = [threading.Thread(target=begin, args=(rank,)) for rank in range(len(programs))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return raised


@pytest.fixture
def job() -> Iterator[Job]:
    found = Job(3)
    yield found
    for thread in found.threads:
        thread.stop()


def test_the_same_on_all_ranks(job):
    step, report = program("all_reduce(float32[4])"), program("all_reduce(float32[])")
    for each in (step, step, report, step):
        assert job.together(each, each, each) == [None] * 3


def test_different_collectives(job):
    same, other = program("all_reduce(float32[4])"), program("all_reduce(int32[4])")
    for _ in range(3):
        assert job.together(same, same, same) == [None] * 3
    raised = job.together(same, same, other)
    assert raised[2] is not None  # it differs from those that have run this before
    assert "different collectives, number 4 of the job" in str(raised[2])
    assert "rank 0: all_reduce(float32[4]) at train.py:1" in str(raised[2])
    assert "rank 2: all_reduce(int32[4]) at train.py:1" in str(raised[2])
    with pytest.raises(MismatchError, match="number 4 of the job"):
        job.begin(2, same)


def test_at_most_one_of_two_that_differ_starts(job):
    for ranks in ((0, 1), (0, 1, 2)):
        programs = [program(f"all_reduce(float32[{rank % 2}])", ranks=ranks) for rank in range(len(ranks))]
        raised = job.together(*programs)
        assert len({rank % 2 for rank, error in enumerate(raised) if error is None}) <= 1
        for each in job.ranks:
            each._failure = None


def test_who_comes_later_compares_before_it_starts(job):
    job.begin(0, program("all_reduce(float32[4])"))  # which waits for nobody
    with pytest.raises(
        MismatchError, match=r"(?s)rank 0: all_reduce\(float32\[4\]\).*rank 1: all_reduce\(float32\[8\]"
    ):
        job.begin(1, program("all_reduce(float32[8])"))


def test_who_differs_in_what_it_has_run_before_is_told_when_it_comes(job):
    step, report = program("all_reduce(float32[4])"), program("all_reduce(float32[8])")
    for each in (step, step, report):
        for rank in range(3):
            job.begin(rank, each)
    for rank in (1, 2):
        job.begin(rank, program("all_gather(float32[8])"))
    for known in job.ranks[0]._known.copy():
        job.ranks[0]._known.add((report, known[1]))  # nothing is new to it
    job.ranks[0]._quiet_until = float("inf")
    with pytest.raises(MismatchError, match=r"rank 0: all_reduce\(float32\[4\]\)"):
        job.begin(0, step)


def test_programs_may_be_cut_differently(job):
    first, second = "all_reduce(float32[4])", "all_gather(float32[8])"
    job.begin(0, program(first, second))
    for rank in (1, 2):
        job.begin(rank, program(first))
    job.begin(1, program(second))
    with pytest.raises(MismatchError, match=r"(?s)number 2 of the job.*rank 2: all_reduce\(float32\[9\]\)"):
        job.begin(2, program("all_reduce(float32[9])"))


def test_a_loop_asks_nothing(job):
    step = program("all_reduce(float32[4])")
    for _ in range(2):
        job.together(step, step, step)
    asked = job.questions()
    for _ in range(100):
        for rank in range(3):
            job.begin(rank, step)
    assert job.questions() == asked


def test_groups_of_some_ranks_have_logs_of_their_own(job):
    pair, other = (program(name, ranks=(0, 1)) for name in ("all_reduce(float32[4])", "all_reduce(float32[5])"))
    alone = program("all_reduce(float32[6])", ranks=(2,))
    job.begin(2, alone)
    job.begin(0, pair)
    job.begin(1, pair)
    job.begin(0, pair)
    with pytest.raises(MismatchError, match="number 2 of the job"):
        job.begin(1, other)


def test_a_rank_that_has_ended(job):
    job.ranks[2].leave()
    job.threads[2].stop()
    with pytest.raises(MismatchError, match="rank 2: has ended"):
        job.begin(0, program("all_reduce(float32[4])"))


def test_a_rank_that_does_not_answer_is_not_waited_for(job, monkeypatch):
    monkeypatch.setattr(collective_checker, "ANSWER_S", 0.1)
    job.threads[2].join = lambda timeout: None
    job.notes.add("letters/2", 1)  # a letter that never comes: the thread waits for it
    job.begin(0, program("all_reduce(float32[4])"))


def test_questions_do_not_fill_the_store(job):
    before = None
    for number in range(3 * collective_checker.KEPT):
        fresh = program(f"all_reduce(float32[{number}])")
        assert job.together(fresh, fresh, fresh) == [None] * 3
        if number == 2 * collective_checker.KEPT:
            before = job.notes.num_keys()
    assert job.notes.num_keys() <= before + 3 * 3 * collective_checker.KEPT


def test_a_rank_that_waits_where_the_store_has_gone_ends(monkeypatch):
    said: list[str] = []
    monkeypatch.setattr(process_exit, "now", said.append)
    monkeypatch.setenv("XLA_JOB_TIMEOUT", "1")
    server = _dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    mine = Agreement(0, _dist.TCPStore("localhost", server.port, is_master=False))
    mine.logs[0, 1] = Log()
    mine.logs[0, 1].add(program("all_reduce(float32[4])", ranks=(0, 1)), {})
    thread = watchdog._Watchdog(mine)
    thread._look()
    del server
    thread._waited = 2.0
    thread._look()
    (words,) = said
    assert words.startswith(
        "rank 0 has waited 1 s (XLA_JOB_TIMEOUT) for the other ranks in all_reduce(float32[4]), and"
    )
