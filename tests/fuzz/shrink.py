"""Makes a program that fails smaller, as long as it fails in the same way.

Hypothesis' own shrinker would run it some hundred times, each of which compiles. Leaving out statements, and
simplifying what is left by its text, gets as far for programs of a dozen lines.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

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


def shrink(program: Program, fails: Callable[[Program], bool], tries: int = 200) -> Program:
    """The smallest program found that `fails`.

    Args:
        tries: how many programs are run at most.
    """
    found = True
    while found and tries > 0:
        found = False
        for candidate in _smaller(program):
            tries -= 1
            if fails(candidate):
                program, found = candidate, True
                break
            if tries <= 0:
                break
    return program


def _smaller(program: Program) -> Iterator[Program]:
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
