"""Smaller programs than one that fails: without statements, and with simpler ones."""

from __future__ import annotations

import re
from collections.abc import Iterator

from .language import Program

#: (pattern, replacement) for a statement, each tried where it matches.
SIMPLER = (
    (r"^with torch\.no_grad\(\): ", ""),
    (r"\.requires_grad_\(\)$", ""),
    (r"strided\((\(.*?\)), \(.*?\), (\w+)\)", r"values(\1, \2)"),
    (r"(values\(.*), (?!float32)\w+\)", r"\1, float32)"),
    (r"(t\d+)(\[[^]]*\]|\.\w+\([^()]*\))(?=[.\[])", r"\1"),  # a step between a variable and what is done with it
    (r"values\(\([^()]*\)\)$", "2"),
)


def smaller(program: Program) -> Iterator[Program]:
    """Programs that are a little smaller, those that leave out most first."""
    for section in reversed(range(3)):
        if len(program[section]) > 3:  # half of them at once
            middle = len(program[section]) // 2
            yield _with(program, section, program[section][:middle])
            yield _with(program, section, program[section][middle:])
    for section in reversed(range(3)):
        for number in reversed(range(len(program[section]))):
            yield _with(program, section, program[section][:number] + program[section][number + 1 :])
    for section in range(3):
        for number, statement in enumerate(program[section]):
            for pattern, replacement in SIMPLER:
                simpler = re.sub(pattern, replacement, statement, count=1)
                if simpler != statement:
                    changed = (*program[section][:number], simpler, *program[section][number + 1 :])
                    yield _with(program, section, changed)


def _with(program: Program, section: int, statements: tuple[str, ...]) -> Program:
    return program._replace(**{Program._fields[section]: statements})


def traits(program: Program) -> list[str]:
    """What a program consists of: of those with the same traits that fail alike, one is reported."""
    return sorted({"".join(found) for found in re.findall(r"\.(\w+)\(| ([-+*]?=) ", "\n".join(program.statements))})
