"""Command line of the long comparison: `python -m benchmarks compare`."""

from __future__ import annotations

import argparse
import datetime
import re
from pathlib import Path
from typing import Any

from . import environment, models, report, roofline, run
from .modes import FLOAT32, TESTS, available
from .options import add_models, add_names, check_inputs, positive
from .remote import ROOT, RemoteError, Server
from .worker import Request

RESULTS = ROOT / "benchmarks" / "results"
ROUNDS = 15
SECONDS_PER_PROCESS = 300.0  # compiling included, of which inductor's autotuning takes most


def add_options(parser: argparse.ArgumentParser) -> None:
    """Gives the command its options."""
    add_models(parser, ",".join(models.SETS))
    add_names(parser, "--modes", "mode", FLOAT32, all_="all that can be run here")
    add_names(parser, "--test", "test", TESTS)
    parser.add_argument(
        "--torch-xla", metavar="PYTHON", help="the interpreter of an environment where torch_xla is installed"
    )
    parser.add_argument(
        "--image-size", type=positive, default=models.IMAGE_SIZE, metavar="N", help=f"default {models.IMAGE_SIZE}"
    )
    parser.add_argument("--repeat", type=positive, default=ROUNDS, metavar="N", help=f"rounds (default {ROUNDS})")
    parser.add_argument(
        "--budget",
        type=positive,
        default=SECONDS_PER_PROCESS,
        metavar="SECONDS",
        help="for each model and batch size: rounds are cut to keep to it, to three at the least "
        f"(default {SECONDS_PER_PROCESS:.0f})",
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        help="write the results here, and the tables beside them (default: benchmarks/results/, by date and kind of "
        "machine, where all models, modes and tests are run at the usual image size)",
    )


def main(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    """Measures everything and prints the tables; 1 if a row failed."""
    check_inputs(parser, options.models, None, options.image_size)
    more: dict[str, Any] = {}
    if options.torch_xla is not None:
        try:
            more["torch_xla"] = _torch_xla(options.torch_xla)
        except (OSError, RemoteError) as error:
            parser.error(f"--torch-xla: {error}")
    modes = available(options.modes, options.torch_xla)
    if not modes:
        parser.error(f"none of the modes {', '.join(options.modes)} can be run here")
    output = options.output or (kept(environment.collect()["machine"]) if _complete(options) else None)
    more["gemm_gflops"] = round(roofline.peak_gflops(), 1)
    more["read_gbytes"] = round(roofline.bandwidth() / 1e9, 1)
    records = run.run(requests(options, modes), output, more)
    text = report.tables(records)
    if output is not None:
        output.with_suffix(".md").write_text(text + "\n")
    print(text)
    return int(any(record.get("failure") for record in records))


def requests(options: argparse.Namespace, modes: list[str]) -> list[Request]:
    """For each model, inference of one image or text alone, and all tests at its default batch size."""
    made = []
    for model in options.models:
        usual = Request(
            model,
            tests=options.test,
            modes=modes,
            image_size=options.image_size,
            rounds=options.repeat,
            budget_s=options.budget,
            torch_xla=options.torch_xla,
        )
        if "inference" in options.test:
            made.append(usual._replace(tests=["inference"], batch_size=1))
        made.append(usual)
    return made


def kept(machine: dict[str, Any], folder: Path = RESULTS) -> Path:
    """Where a day's results on a kind of machine are kept."""
    kind = re.sub(r"[^a-z0-9]+", "-", f"{machine['cpu']} {machine['cores']} cores".lower()).strip("-")
    return folder / f"compare-{datetime.date.today().isoformat()}-{kind}.jsonl"


def _complete(options: argparse.Namespace) -> bool:
    chosen, everything = (options.models, options.modes, options.test), (models.COMPARED, FLOAT32, TESTS)
    return options.image_size == models.IMAGE_SIZE and all(map(_same, chosen, everything))


def _same(chosen: Any, everything: Any) -> bool:
    return set(chosen) == set(everything)


def _torch_xla(interpreter: str) -> dict[str, Any]:
    """The versions of the environment that has torch_xla.

    Raises:
        RemoteError: it has none, or not what the models need.
    """
    with Server(interpreter) as server:
        hello = server.ask("hello")
    if not hello["torch_xla"]:
        raise RemoteError(f"torch_xla is not installed for {Path(interpreter).name}")
    return hello["versions"]
