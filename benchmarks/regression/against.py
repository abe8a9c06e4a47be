"""Two commits measured in turns: a process for each, round by round, so that noise falls on both alike. Eager's results
are what theirs are compared with; it is not timed.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from .. import measure, verify
from ..remote import ROOT, Program, RemoteError, Server
from ..row import Row
from ..training_step import SETTLING
from ..worker import Request, exact_results

ENVIRONMENT: dict[str, str | None] = {
    # what compilers left on the disk is not used, as in `worker.py`
    "XLA_PERSISTENT_CACHE_PATH": "0",
    "JAX_COMPILATION_CACHE_DIR": None,
}

#: Of a round: a call of a small model takes 5 ms, and one that threads sleep through (`measure.BRIEF_S`) as many more.
LEAST_S = 0.05

Record = dict[str, Any]


class Both(NamedTuple):
    """The records of the commit before and of the one after, as `gate.judge_turns` takes them."""

    before: list[Record]
    after: list[Record]


def measure_both(
    requests: Sequence[Request],
    before: Path,
    after: Path = ROOT,
    *,
    plant: float = 1.0,
    swapped: bool = False,
    tell: Callable[[str], object] = lambda text: None,
    done: Callable[[], object] = lambda: None,
) -> Both:
    """Measures each request in two checkouts; both are verified against eager.

    Args:
        requests: `budget_s` and `rounds` bound the rounds of a test, not what comes before.
        before, after: folders of checkouts with this commit's `benchmarks`.
        plant: `after`, rounds take so many times as long: a slowdown to try the gate by.
        swapped: the commit after is the first to start and to have its turn.
        tell: told what is measured next.
        done: told when it has been.

    Raises:
        RemoteError: a process does not start, or runs another package than its checkout's, or eager fails.
    """
    found = Both([], [])
    for request in requests:
        trees = {"before": before, "after": after}
        if swapped:
            trees = dict(reversed(trees.items()))
        with contextlib.ExitStack() as processes:
            servers = {
                side: processes.enter_context(Server(tree=tree, environment=ENVIRONMENT))
                for side, tree in trees.items()
            }
            threads = {side: _check(servers[side], tree) for side, tree in trees.items()}
            for test in request.tests:
                tell(f"{request.model} {test}")
                rows = _run(request, test, servers, plant)
                for side, kept in zip(("before", "after"), found, strict=True):
                    kept += [
                        {"record": "row", **row.finished(), "torch_threads": threads[side]}
                        for name, row in rows.items()
                        if name.startswith(side)
                    ]
                done()
    return found


def _check(server: Server, tree: Path) -> int:
    """Makes sure that a process runs the packages of its checkout; returns how many threads torch has there."""
    hello = server.ask("hello")
    if hello["package"] is None or not os.path.samefile(hello["package"], tree):
        raise RemoteError("the process imports another lazy_runtime than its checkout's")
    return hello["threads"]


def _run(request: Request, test: str, servers: Mapping[str, Server], plant: float) -> dict[str, Row]:
    modes = ["eager", *(mode for mode in request.modes if mode != "eager")]
    exact = exact_results(request, test)  # once, and before there are threads
    with ThreadPoolExecutor(len(servers)) as both:  # they compile side by side
        sides = list(
            both.map(
                lambda side: _first_calls(
                    request, test, modes, side, servers[side], plant if side == "after" else 1.0, exact
                ),
                servers,
            )
        )
    rows = {name: row for side in sides for name, row in side.rows.items()}
    expected = sides[0].expected
    timed = {name: row for name, row in rows.items() if row.program is not None and row.record["mode"] != "eager"}
    # a program there makes a turn of its own
    times = measure.interleave(timed, request.rounds, time.perf_counter() + request.budget_s, most_runs=1)
    for name, row in rows.items():
        row.first_step_again()
        row.compare(expected)
        row.finish(times.get(name, []))
    return rows


class FirstCalls(NamedTuple):
    """One commit's rows after their first calls, and what they are compared with, from eager's results there."""

    rows: dict[str, Row]
    expected: verify.Reference


def _first_calls(
    request: Request,
    test: str,
    modes: Sequence[str],
    side: str,
    server: Server,
    plant: float,
    exact: verify.Results | None,
) -> FirstCalls:
    rows: dict[str, Row] = {}
    expected: verify.Reference | None = None
    least_s = 0.0 if test == "step" else LEAST_S
    for mode in modes:
        row = rows[f"{side} {mode}"] = Row({"model": request.model, "test": test, "mode": mode})
        if test == "step":
            row.record["loop"] = request.loop
        times = 1.0 if mode == "eager" else plant
        row.first_call(
            lambda mode=mode, times=times: Program(server, request._asdict(), test, mode, times, least_s),
            expected,
        )
        if mode == "eager":
            if row.program is None:
                raise RemoteError(f"eager, which all else is compared with, failed: {row.failure}")
            expected = verify.reference(row.program.results(), exact)
        if test == "step":
            row.settle(SETTLING)
    assert expected is not None
    return FirstCalls(rows, expected)
