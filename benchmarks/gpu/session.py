"""The program: facts, smoke test, models, profiles, as long as time is left."""

from __future__ import annotations

import contextlib
import functools
import os
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tqdm import tqdm

from .. import environment, report
from . import checkout, child, facts, kernels, smoke, speedups, summary, wave
from .planner import Planner
from .precision import DRY_MODES, GPU_MODES, OURS, DeviceRequest, registered
from .settings import Settings
from .store import Store

Record = dict[str, Any]

SUMMARY, TABLES = "summary.md", "tables.md"


def run(settings: Settings) -> Store:
    """Runs everything that there is time for.

    Returns:
        The records, which are in the settings' folder as well.
    """
    store = Store(settings.output, {SUMMARY: summary.text, TABLES: _tables})
    store.add({"record": "settings", "dry": settings.dry, "minutes": settings.minutes, "models": [*settings.models]})
    planner = Planner(
        60 * settings.minutes,
        settings.prepare_s,
        settings.time_s,
        tell=lambda left_out: store.add({"record": "left_out", **left_out._asdict()}),
    )
    how = "was stopped"
    with tempfile.TemporaryDirectory() as folder, _environment(settings, Path(folder)), registered():
        if not checkout.is_installed():
            checkout.put_on_path(checkout.write_metadata(Path(folder)))
        session = _Session(settings, store, planner)
        try:
            for what, part in (
                ("facts, roofline and the C++ part", session.facts),
                ("smoke test", session.smoke),
                ("models", session.models),
                ("profiles", session.profiles),
            ):
                start, failure = time.monotonic(), None
                try:
                    part()
                except Exception as error:  # the parts after it have their chance
                    traceback.print_exc()
                    failure = environment.one_line(error)
                store.add({"record": "phase", "what": what, "seconds": time.monotonic() - start, "failure": failure})
            how = "ended"
        finally:
            ended = {"how": how, "seconds": planner.elapsed_s, "minutes": settings.minutes}
            store.add({"record": "end", **ended})
    return store


def _tables(records: Sequence[Record]) -> str:
    """Milliseconds, spreads and first calls, as of other commands."""
    return report.tables([record for record in records if record["record"] in ("environment", "row")])


@contextlib.contextmanager
def _environment(settings: Settings, folder: Path) -> Iterator[None]:
    """What all processes find in their environment; the variables are as before afterwards."""
    before = dict(os.environ)
    os.environ.update(
        PJRT_DEVICE=settings.platform,
        XLA_PYTHON_CLIENT_PREALLOCATE="false",  # torch needs memory there too
        XLA_PERSISTENT_CACHE_PATH="0",
        TORCHINDUCTOR_CACHE_DIR=str(folder / "inductor"),  # a second program does not find what the first compiled
    )
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


class _Session:
    """The parts, in their order."""

    def __init__(self, settings: Settings, store: Store, planner: Planner):
        self.settings = settings
        self.store = store
        self.planner = planner
        self._built = True

    def facts(self) -> None:
        """Collects facts and builds the C++ part beside: a compiler of C++ does not disturb a GPU."""
        settings = self.settings
        size = (settings.matrix, settings.copied_mib, settings.rate_rounds)
        jobs: list[tuple[str, Callable[[], Record]]] = [
            ("facts", lambda: self._call(facts.collect, settings.dry)),
            ("rates", lambda: {"rates": self._call(facts.rates, settings.device, *size)}),
            ("sizes", lambda: {"sizes": self._call(facts.parameter_bytes, list(settings.models))}),
            ("build", lambda: self._call(checkout.build, limit_s=settings.build_s)),
        ]
        for name, found in self._together(jobs):
            is_environment = name == "facts" and not found["failure"]
            self.store.add({**found, "record": "environment" if is_environment else name})
            if name == "build" and found["failure"]:
                self._built = False

    def smoke(self) -> None:
        """Runs the checks, each in a process of its own."""
        if not self.planner.may_start("the smoke test", 20.0):
            return
        if not self._built:
            self.planner.leave_out("the smoke test", "the C++ part was not built")
            return

        def check(function: Callable[..., Any], on_xla: bool) -> Record:
            device = "xla" if on_xla else self.settings.device
            return self._call(function, device, self.settings.platform)

        jobs = [(name, functools.partial(check, *chosen)) for name, chosen in smoke.CHECKS.items()]
        for name, found in self._together(jobs):
            self.store.add({"record": "smoke", "check": name, **found})

    def models(self) -> None:
        """Verifies and times models, in waves, until no time is left for another."""
        settings, planner = self.settings, self.planner
        waiting = settings.requests()
        if not self._built:
            waiting = [each._replace(modes=_others(each)) for each in waiting]
            planner.leave_out("the modes of openxla", "the C++ part was not built")
        threads = {"OMP_NUM_THREADS": str(settings.threads), "TORCHINDUCTOR_COMPILE_THREADS": str(settings.threads)}
        os.environ.update(threads)
        keep_s = settings.profiles * settings.profile_s
        with tqdm(total=len(waiting), unit="model", dynamic_ncols=True, disable=None) as bar:
            while size := planner.wave_size(len(waiting), settings.workers, keep_s):
                chosen, waiting = waiting[:size], waiting[size:]
                bar.set_postfix_str(", ".join(each.title for each in chosen))
                limits = wave.Limits(
                    planner.prepare_limit_s(size, settings.most_prepare_s),
                    settings.step_s,
                    settings.timing_s,
                    settings.part_s,
                    planner.left_s,
                )
                outcome = wave.run(chosen, limits, functools.partial(self._keep, bar), self.store.log)
                waiting = [*outcome.again, *waiting]
                planner.observe(outcome.prepared_s, outcome.timed_s, outcome.timed)
                bar.update(size - len(outcome.again))
        for name in threads:
            os.environ.pop(name, None)
        self._leave_out(waiting)

    def profiles(self) -> None:
        """Lists the kernels of the models where this package stands worst, beside the fastest other's."""
        settings = self.settings
        for each in speedups.worst(self.store.of("row"), settings.profiles):
            for roles in (OURS, speedups.OTHERS):
                fastest = speedups.fastest(each.modes, roles)
                if fastest is None:
                    continue
                row = each.modes[fastest[1]]
                title = f"the profile of {each.model} {each.test} {each.precision}, {row['mode']}"
                if not self.planner.may_start(title, settings.profile_s):
                    continue
                request = settings.request(each.model, each.test, each.precision)
                described = {"model": each.model, "test": each.test, "precision": each.precision, "mode": row["mode"]}
                found = self._attempt(
                    lambda request=request, row=row: {
                        "top": self._call(
                            kernels.top,
                            request.model,
                            request.tests[0],
                            row["mode"],
                            request.tf32,
                            request.batch_size,
                            request.image_size,
                        )
                    }
                )
                self.store.add({"record": "profile", **described, **found})

    def _keep(self, bar: tqdm, row: Record) -> None:
        """Takes a row of a model, with what the tables group by."""
        modes = DRY_MODES if self.settings.dry else GPU_MODES
        named = next(
            {"precision": precision, "role": role}
            for precision, of in modes.items()
            for role, mode in of.items()
            if mode == row["mode"]
        )
        self.store.add({"record": "row", **row, **named})
        bar.write(report.row_line(row))

    def _leave_out(self, waiting: Sequence[DeviceRequest]) -> None:
        """Names the models that there was no time for, by test and precision."""
        groups: dict[str, list[str]] = {}
        for each in waiting:
            groups.setdefault(f"{each.tests[0]} {each.precision}", []).append(each.model)
        for group, names in groups.items():
            left = self.planner.left_s
            self.planner.leave_out(f"{group} of {', '.join(names)}", f"{left:.0f} s were left, too few for a wave")

    def _call(self, function: Callable[..., Any], *arguments: Any, limit_s: float | None = None) -> Any:
        limit_s = self.planner.limit_s(limit_s or self.settings.part_s)
        return child.call(function, *arguments, limit_s=limit_s)

    def _attempt(self, job: Callable[[], Record]) -> Record:
        """What a job finds, its seconds, and its failure."""
        start = time.monotonic()
        try:
            found, failure = job(), None
        except child.ChildError as error:
            found, failure = {}, str(error)
        except Exception as error:
            found, failure = {}, environment.one_line(error)
        return {**found, "seconds": time.monotonic() - start, "failure": failure}

    def _together(self, jobs: Sequence[tuple[str, Callable[[], Record]]]) -> Iterator[tuple[str, Record]]:
        """Runs jobs in parallel, and yields each as soon as it and those before it are done."""
        with ThreadPoolExecutor(min(len(jobs), max(2, self.settings.workers))) as pool:
            running = [(name, pool.submit(self._attempt, job)) for name, job in jobs]
            try:
                for name, each in running:
                    yield name, each.result()
            except BaseException:  # the program is stopped: nothing is waited for
                pool.shutdown(wait=False, cancel_futures=True)
                child.end_all()
                raise


def _others(request: DeviceRequest) -> list[str]:
    ours = {of[role] for modes in (GPU_MODES, DRY_MODES) for of in modes.values() for role in OURS}
    return [mode for mode in request.modes if mode not in ours]
