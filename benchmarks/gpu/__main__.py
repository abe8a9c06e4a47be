"""Command line: `python -m benchmarks.gpu`."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from ..options import add_models, add_names, at_least
from . import session, settings
from .precision import PRECISIONS, ROLES, TESTS
from .settings import Settings

MINUTES, DRY_MINUTES = 9.0, 3.0
OUTPUT = Path("benchmarks/results/gpu")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures, and prints the summary; 1 if something failed."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if not options.dry and not torch.cuda.is_available():
        parser.error("torch finds no GPU here: --dry runs the same program on the CPU")
    signal.signal(signal.SIGTERM, _stop)  # `timeout` sends it: processes are ended, and the summary says so
    kept = session.run(chosen(options))
    print((kept.folder / session.SUMMARY).read_text())
    return int(any(record.get("failure") for record in kept.records))


def chosen(options: argparse.Namespace) -> Settings:
    """The settings that the options ask for."""
    minutes = options.minutes or (DRY_MINUTES if options.dry else MINUTES)
    usual = (settings.dry if options.dry else settings.on_gpu)(minutes, options.output)
    given = {name: value for name in ("models", "profiles") if (value := getattr(options, name)) is not None}
    if options.test is not None or options.precision is not None:
        tests, precisions = options.test or TESTS, options.precision or PRECISIONS
        given["passes"] = [each for each in settings.PASSES if each[0] in tests and each[1] in precisions]
    return usual._replace(roles=options.modes, **given)


def _stop(number: int, frame: object) -> None:
    raise SystemExit(128 + number)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu", description="Measure one NVIDIA GPU within a number of minutes."
    )
    parser.add_argument("--dry", action="store_true", help="the same program on the CPU, with tiny settings")
    parser.add_argument(
        "--minutes",
        type=at_least(0.1),
        metavar="M",
        help=f"of the whole (default {MINUTES:g}, in a dry run {DRY_MINUTES:g})",
    )
    parser.add_argument(
        "--output", type=Path, default=OUTPUT, metavar="DIR", help=f"folder of the results (default {OUTPUT})"
    )
    add_models(parser, "published,today")
    add_names(parser, "--test", "test", TESTS)
    add_names(parser, "--precision", "precision", PRECISIONS)
    parser.set_defaults(models=None, test=None, precision=None)  # a dry run has others
    add_names(parser, "--modes", "mode", ROLES)
    parser.add_argument(
        "--profiles",
        type=int,
        metavar="N",
        help="models whose kernels are listed (default 2, in a dry run 1)",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
