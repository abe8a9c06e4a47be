"""Command line: `python -m benchmarks COMMAND`; `--help` lists the commands."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from . import compare_command, environment, models, report, run
from .measurements import (
    coldstart,
    compiletime,
    eager,
    generate,
    growth,
    growth_axes,
    growth_plot,
    growth_point,
    hosttime,
    interop,
    longsequence,
    memory,
    steptime,
)
from .options import add_choices, add_names, at_least, check_choices, check_inputs, positive
from .regression import gate_command
from .worker import Request

SECONDS_PER_MODEL = 45.0  # ten models end within ten minutes, also where verifying and compiling take longer than here


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; 1 if a row failed."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.command in _TABLES:
        print(report.machine(environment.collect()))
        for table in _TABLES[options.command](options):
            print(f"\n{table}")
        return 0
    if options.command == "compare":
        return compare_command.main(parser, options)
    if options.command == "gate":
        return gate_command.main(parser, options)
    if options.command == "table":
        try:
            records = run.read(options.file)
            if options.into is not None:
                report.write_into(options.into, records)
        except (OSError, ValueError) as error:
            parser.error(str(error))
    else:
        _check(parser, options)
        records = run.run(_requests(options), options.output)
    print(report.tables(records))
    return int(any(record.get("failure") for record in records))


#: Commands that print tables and keep nothing.
_TABLES: dict[str, Callable[[argparse.Namespace], Iterable[str]]] = {
    "coldstart": lambda options: [coldstart.table(coldstart.starts(options.repeat, *_size(options)), *_size(options))],
    "compiletime": lambda options: [compiletime.table(options.repeat, options.models)],
    "eager": lambda options: (eager.table(model, *eager.rates(model, options.steps)) for model in options.models),
    "generate": lambda options: [generate.table(options.modes, options.weights, options.batches, options.repeat)],
    "growth": lambda options: growth.tables(
        options.axes, options.modes, options.quick, options.limit, options.repeat, options.output, options.plot
    ),
    "hosttime": lambda options: hosttime.tables(options.models, options.repeat),
    "interop": lambda options: interop.tables(options.repeat),
    "longsequence": lambda options: [longsequence.table(options.modes, options.dtypes)],
    "memory": lambda options: [memory.table()],
    "steptime": lambda options: [steptime.table(options.repeat, options.cases)],
}


def _size(options: argparse.Namespace) -> tuple[int, int]:
    return options.batch_size, options.image_size


def _requests(options: argparse.Namespace) -> list[Request]:
    # a test of all models is timed after they have all been prepared for it
    groups = [[test] for test in options.test] if options.together else [options.test]
    return [_request(model, tests, options) for tests in groups for model in options.models]


def _request(model: str, tests: Sequence[str], options: argparse.Namespace) -> Request:
    timed = options.command == "run"
    return Request(
        model=model,
        tests=tests,
        modes=options.modes,
        batch_size=options.batch_size,
        image_size=options.image_size,
        rounds=options.repeat if timed else 0,
        budget_s=options.budget / len(options.models) if timed and options.budget else SECONDS_PER_MODEL,
        float64=not timed or options.float64,
        loop=options.loop if timed else 1,
        tf32=options.tf32,
        together=options.together,
    )


def _check(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Refuses arguments that do not go together."""
    check_choices(parser, options.modes, options.test, options.models)
    if options.command == "run" and options.loop > 1 and "step" not in options.test:
        parser.error("--loop is a number of training steps: it needs --test step")
    check_inputs(parser, options.models, options.batch_size, options.image_size)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    timed = commands.add_parser("run", help="verify and time models, write results, print tables")
    timed.add_argument("--repeat", type=positive, default=20, metavar="N", help="the most rounds to time (default 20)")
    timed.add_argument(
        "--budget",
        type=positive,
        metavar="SECONDS",
        help="for the whole run: rounds are cut to keep to it, to three at the least; verification and compilation are "
        f"not cut (default {SECONDS_PER_MODEL:.0f} per model)",
    )
    timed.add_argument("--float64", action="store_true", help="also verify training and step on xla in float64")
    timed.add_argument(
        "--loop",
        type=positive,
        default=1,
        metavar="N",
        help="in the test step, time loops of N steps of which only the last is waited for (default: single steps)",
    )
    check = commands.add_parser(
        "verify", help="verify models without timing them: float32 outputs, float32 and float64 gradients"
    )
    for command in (timed, check):
        add_choices(command)
        command.add_argument("--tf32", action="store_true", help="on a GPU, multiply float32 as TF32 in every mode")
        command.add_argument(
            "--together",
            action="store_true",
            help="prepare all models at once, on as many cores, and time them in turn",
        )
        command.add_argument("--output", type=Path, metavar="FILE", help="write the results here, as JSON lines")

    compare = commands.add_parser("compare", help="all models in all tests and modes, against all others: hours")
    compare_command.add_options(compare)

    gate = commands.add_parser("gate", help="whether a speedup fell by more than noise; 1 if one did")
    gate_command.add_options(gate)

    table = commands.add_parser("table", help="print the tables of a result file")
    table.add_argument("file", type=Path, metavar="FILE", help="JSON lines from `run --output`")
    table.add_argument(
        "--into", type=Path, metavar="PAGE", help="also put them into this Markdown page, in the place that is marked"
    )

    cold = commands.add_parser(
        "coldstart", help="first result of resnet50 in a new process, cache on disk empty and full"
    )
    cold.add_argument("--repeat", type=positive, default=3, metavar="N", help="processes of each kind (default 3)")
    cold.add_argument("--batch-size", type=positive, default=4, metavar="N", help="default 4")
    cold.add_argument("--image-size", type=positive, default=models.IMAGE_SIZE, metavar="N", help="default 224")

    compiling = commands.add_parser("compiletime", help="first run of a model with empty caches, beside Inductor's")
    compiling.add_argument("--repeat", type=positive, default=3, metavar="N", help="processes of each kind (default 3)")
    add_names(compiling, "--models", "model", compiletime.MODELS)

    sequence = commands.add_parser("longsequence", help="memory of attention over a long sequence, in all its forms")
    add_names(sequence, "--modes", "mode", longsequence.MODES)
    add_names(sequence, "--dtypes", "dtype", ("float32", "bfloat16"))

    tokens = commands.add_parser(
        "generate", help="a language model's prefill and tokens per second, beside the memory's"
    )
    tokens.add_argument("--repeat", type=positive, default=5, metavar="N", help="rounds of all modes (default 5)")
    tokens.add_argument(
        "--batches", type=positive, nargs="+", default=[1, 8], metavar="N", help="prompts at once (default 1 8)"
    )
    add_names(tokens, "--modes", "mode", generate.MODES)
    add_names(tokens, "--weights", "dtype", generate.WEIGHTS, "float32,bfloat16")

    growing = commands.add_parser("growth", help="how cost grows with work: exponents of power laws")
    add_names(growing, "--axes", "axis", growth_axes.AXES)
    add_names(growing, "--modes", "mode", growth_point.MODES)
    growing.add_argument("--quick", action="store_true", help="a few small sizes, to try the command")
    growing.add_argument(
        "--limit",
        type=at_least(0.1),
        default=60.0,
        metavar="SECONDS",
        help="of a process: larger points of its axis and mode are then skipped (default 60)",
    )
    growing.add_argument(
        "--repeat", type=positive, default=1, metavar="N", help="processes of a point, the least counts (default 1)"
    )
    growing.add_argument("--output", type=Path, metavar="FILE", help="write every row here, as JSON lines")
    growing.add_argument(
        "--plot", type=growth_plot.svg, metavar="FILE.svg", help="draw the lines here (needs matplotlib)"
    )
    commands.add_parser("memory", help="device memory of a training step, beside one that was written in jax by hand")
    host = commands.add_parser("hosttime", help="time until a call of a model returns, and to record an operator")
    host.add_argument("--repeat", type=positive, default=100, metavar="N", help="bursts of calls (default 100)")
    add_names(host, "--models", "model", hosttime.BOUNDS)
    between = commands.add_parser("interop", help="jax in torch, torch in jax, and packages, beside their bounds")
    between.add_argument("--repeat", type=positive, default=100, metavar="N", help="graphs of calls (default 100)")
    step = commands.add_parser("steptime", help="time until a training step returns, execution not waited for")
    step.add_argument("--repeat", type=positive, default=100, metavar="N", help="steps of each form (default 100)")
    add_names(step, "--cases", "case", steptime.CASES)
    rates = commands.add_parser("eager", help="training by tracing, eagerly, and eagerly with a compiled step")
    add_names(rates, "--models", "model", ("decoder-only", "resnet50"))
    rates.add_argument("--steps", type=positive, default=100, metavar="N", help="of each mode (default 100)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
