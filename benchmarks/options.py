"""Options that several commands share, and their types."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection, Sequence

from . import in_jax, models
from .modes import MODES, TESTS, available


def add_choices(
    command: argparse.ArgumentParser | argparse._ArgumentGroup,
    models_: str = "published",
    modes: str = "eager,lazy,openxla",
    tests: str = "inference,training",
    image_size: int = models.IMAGE_SIZE,
) -> None:
    """Adds `--models`, `--modes`, `--test`, `--batch-size` and `--image-size`; the arguments are defaults, all modes
    where they are empty.
    """
    add_models(command, models_)
    for option, what, known, default in (
        ("--modes", "mode", MODES, modes),
        ("--test", "test", TESTS, tests),
    ):
        add_names(command, option, what, known, default)
    command.add_argument("--batch-size", type=positive, metavar="N", help="default: the model's own")
    command.add_argument("--image-size", type=positive, default=image_size, metavar="N", help=f"default {image_size}")


def add_names(
    command: argparse.ArgumentParser | argparse._ArgumentGroup,
    option: str,
    what: str,
    known: Collection[str],
    default: str = "",
    all_: str = "all",
) -> None:
    """Adds an option that takes names out of `known`.

    Args:
        what: one of them is, for messages.
        default: names with commas; all of `known` if empty.
        all_: what the help calls these.
    """
    command.add_argument(
        option,
        type=names(what, known),
        default=default or list(known),
        metavar="A,B",
        help=f"of {', '.join(known)} (default: {default or all_})",
    )


def add_models(command: argparse.ArgumentParser | argparse._ArgumentGroup, default: str) -> None:
    """Adds `--models`, which takes names of models and of sets of models."""
    sets = "; ".join(f"{name} for {', '.join(found)}" for name, found in models.SETS.items())
    command.add_argument(
        "--models",
        type=_model_names,
        default=_model_names(default),
        metavar="A,B",
        help=f"models, or {sets} (default: {default})",
    )


def _model_names(text: str) -> list[str]:
    """An argparse type: names of models, those of sets among them."""
    found = names("model", [*models.SETS, *models.MODELS])(text)
    return list(dict.fromkeys(model for name in found for model in models.SETS.get(name, [name])))


def check_choices(
    parser: argparse.ArgumentParser, modes: Sequence[str], tests: Sequence[str], names: Sequence[str]
) -> None:
    """Refuses modes, tests and models that do not go together: ends the process with a message."""
    missing = [mode for mode in modes if mode not in available(modes)]
    if missing:
        how = f"{MODES[missing[0]].needs} is not installed" if MODES[missing[0]].needs else "only `compare` has it"
        parser.error(f"mode {missing[0]} cannot be run: {how}")
    for mode in modes:
        lacking = [test for test in tests if test not in MODES[mode].tests]
        if lacking and not MODES[mode].whole_step:
            parser.error(f"mode {mode} has no test {lacking[0]}: use --test {','.join(MODES[mode].tests)}")
        if MODES[mode].by_hand and not in_jax.MODELS.keys() & set(names):
            parser.error(f"mode {mode} has the models {', '.join(in_jax.MODELS)} alone: use --models")
    whole = [mode for mode in modes if MODES[mode].whole_step]
    others = [test for test in tests if test != "step"]
    if whole and others:
        parser.error(
            f"mode {whole[0]} compiles a whole training step, and the test{'s' * (len(others) > 1)} "
            f"{' and '.join(others)} {'have' if len(others) > 1 else 'has'} none: use --test step"
        )


def check_inputs(parser: argparse.ArgumentParser, names: Sequence[str], batch: int | None, image_size: int) -> None:
    """Refuses images that are too small for a model: ends the process with a message."""
    for model in names:
        try:
            models.example(model, batch, image_size)
        except ValueError as error:
            parser.error(f"--image-size: {error}")


def names(what: str, known: Collection[str]) -> Callable[[str], list[str]]:
    """An argparse type: comma-separated names out of `known`."""

    def parse(text: str) -> list[str]:
        found = list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
        unknown = [name for name in found if name not in known]
        if unknown or not found:
            raise argparse.ArgumentTypeError(
                f"{f'unknown {what} {unknown[0]!r}' if unknown else f'no {what} was named'}: "
                f"the names are {', '.join(known)}"
            )
        return found

    return parse


def positive(text: str) -> int:
    """An argparse type: a whole number of at least 1."""
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, got {text!r}")
    return number


def at_least(least: float) -> Callable[[str], float]:
    """An argparse type: a number of at least `least`."""

    def parse(text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            number = float("nan")
        if not least <= number < float("inf"):
            raise argparse.ArgumentTypeError(f"expected a number of at least {least:g}, got {text!r}")
        return number

    return parse
