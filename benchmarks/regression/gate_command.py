"""Command line of the regression gate: `python -m benchmarks gate`."""

from __future__ import annotations

import argparse
from pathlib import Path

from tqdm import tqdm

from .. import environment, models, report
from ..options import add_choices, at_least, check_choices, check_inputs, positive
from ..worker import Request
from . import against, checkout, gate
from .gate import Allowed, Finding

SMALL_MODELS = "squeezenet1_1,resnet18,mobilenet_v2,llama,lstm,decoding"
SMALL_IMAGE = 64

#: Of rounds, for each model and sitting: with more, what a pair of processes differs by is most of the noise.
SECONDS_PER_MODEL = 8.0
ROUNDS = 300


def add_options(parser: argparse.ArgumentParser) -> None:
    """Gives the command its options."""
    files = parser.add_argument_group("two result files of `run --output`")
    files.add_argument(
        "--baseline", type=Path, metavar="FILE", help="of an earlier commit, on the same kind of machine"
    )
    files.add_argument("--results", type=Path, metavar="FILE", help="of this one")
    turns = parser.add_argument_group("two commits, measured in turns")
    turns.add_argument("--against", metavar="REV", help="the commit that this working tree is measured against")
    add_choices(turns, SMALL_MODELS, "openxla", "inference", SMALL_IMAGE)
    turns.add_argument(
        "--loop",
        type=positive,
        default=1,
        metavar="N",
        help="in the test step, loops of N steps (default: single ones)",
    )
    turns.add_argument(
        "--repeat", type=positive, default=ROUNDS, metavar="N", help=f"the most rounds (default {ROUNDS})"
    )
    turns.add_argument(
        "--budget",
        type=at_least(0),
        default=SECONDS_PER_MODEL,
        metavar="SECONDS",
        help=f"for the rounds of each model and test (default {SECONDS_PER_MODEL:.0f})",
    )
    turns.add_argument(
        "--plant",
        type=at_least(1),
        default=1.0,
        metavar="FACTOR",
        help="make each run of this working tree last so many times as long, to see that the gate finds it: 1.15",
    )
    parser.add_argument(
        "--allow",
        type=_allowances,
        default={},
        metavar="SHARE,MODEL=SHARE",
        help=f"how far a model's speedup may fall (default {gate.ALLOWED}, and {gate.ALLOWED_APART} between files)",
    )
    parser.add_argument(
        "--allow-geomean",
        type=at_least(0),
        default=gate.ALLOWED_GEOMEAN,
        metavar="SHARE",
        help=f"how far a test's geomean may fall (default {gate.ALLOWED_GEOMEAN})",
    )
    parser.add_argument("--summary", type=Path, metavar="FILE", help="write what is printed here too, as Markdown")


def main(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    """Prints what moved; 1 if something fell. Ends the process with 2 if it cannot be told."""
    given = [options.baseline, options.results]
    if options.against is None and None in given:
        parser.error("gate needs --baseline FILE and --results FILE, or --against REV")
    if options.against is not None and given != [None, None]:
        parser.error("--against REV measures both commits: it takes no --baseline and no --results")
    if options.against is not None:
        check_choices(parser, options.modes, options.test, options.models)
        check_inputs(parser, options.models, options.batch_size, options.image_size)
    allowed = Allowed(options.allow.pop("", None), options.allow_geomean, options.allow)
    try:
        findings, notes = _turns(options, allowed) if options.against else _files(options, allowed)
    except (OSError, ValueError, RuntimeError) as error:
        parser.error(str(error))
    text = gate.markdown(findings, notes)
    print(text)
    if options.summary is not None:
        options.summary.write_text(text + "\n")
    return int(any(finding.fell for finding in findings))


def _files(options: argparse.Namespace, allowed: Allowed) -> tuple[list[Finding], list[str]]:
    from .. import run

    before, after = run.read(options.baseline), run.read(options.results)
    notes = gate.check_comparable(before, after)
    return gate.judge(before, after, allowed), notes


def _turns(options: argparse.Namespace, allowed: Allowed) -> tuple[list[Finding], list[str]]:
    """Measures, and what looks like a fall again, in new processes, until it is one or none."""
    requests = [
        Request(
            model=model,
            tests=options.test,
            modes=options.modes,
            batch_size=options.batch_size,
            image_size=options.image_size,
            rounds=options.repeat,
            budget_s=options.budget,
            loop=options.loop,
        )
        for model in options.models
    ]
    notes = [
        f"Against {options.against} ({checkout.resolve(options.against)}). {report.machine(environment.collect())}"
    ]
    sittings: list[against.Both] = []
    found: list[Finding] = []
    with checkout.checkout(options.against) as tree:
        while requests:
            with tqdm(total=len(requests) * len(options.test), unit="test", dynamic_ncols=True, disable=None) as bar:

                def tell(text: str, bar: tqdm = bar) -> None:
                    bar.set_postfix_str(text)

                # the first to start and to have its turn is another one each time
                swapped = len(sittings) % 2 == 1
                both = against.measure_both(
                    requests, tree, plant=options.plant, swapped=swapped, tell=tell, done=bar.update
                )
            sittings.append(both)
            found = gate.judge_turns(sittings, allowed, options.modes)
            again = gate.in_doubt(found)
            requests = [each for each in requests if each.model in again]
    if len(sittings) > 1:
        counts = {each.key.model: each.sittings for each in found if each.sittings > 1 and each.key.model != "geomean"}
        again = ", ".join(f"{model} {count}" for model, count in counts.items())
        notes.insert(0, f"What looked like a fall was measured by further processes, times in all: {again}.")
    return found, notes


def _allowances(text: str) -> dict[str, float]:
    """An argparse type: `0.05`, `resnet18=0.1`, or several with commas; what has no name is every model's."""
    allowed = {}
    for part in text.split(","):
        name, _, share = part.rpartition("=")
        try:
            allowed[name.strip()] = float(share)
        except ValueError:
            allowed[name.strip()] = -1.0
        if name.strip() not in ("", *models.MODELS) or not 0 <= allowed[name.strip()] < 1:
            raise argparse.ArgumentTypeError(f"expected SHARE or MODEL=SHARE, a share being 0.05 or the like: {part!r}")
    return allowed
